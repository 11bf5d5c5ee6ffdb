"""Registering tools in every form, what is declared of them, and tools of other SDKs taken unchanged."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
import pytest
from openai.lib.beta.agents import function_tool, pydantic_function_tool

from answerback.errors import ArgumentsError, ConfigurationError, ToolDefinitionError
from answerback.handlers import foreign
from answerback.handlers.context import ToolContext
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool
from answerback.model import CallKey


class NoJournal:
    async def checkpoint(self, key: CallKey, attempt: int, name: str, value: bytes) -> None:
        raise NotImplementedError

    def progress(self, key: CallKey, message: str) -> None:
        raise NotImplementedError


def context(name: str = "any") -> ToolContext:
    return ToolContext(CallKey("s", "t", "c1"), name=name, journal=NoJournal(), powers=NoJournal())


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def always(ctx: object, agent: object) -> bool:
    return True


def get_customer(customer_id: str) -> str:
    """Find a customer by id."""
    return customer_id


def test_every_form_of_the_decorator_gives_a_tool_that_calls_the_function() -> None:
    handlers = Handlers()

    @handlers.tool
    def bare(n: int) -> int:
        """Bare."""
        return n + 1

    @handlers.tool()
    def empty(n: int) -> int:
        """Empty."""
        return n + 2

    @handlers.tool(name="renamed", description="Told.", timeout=5)
    async def named(n: int) -> int:
        """Named."""
        return n + 3

    direct = handlers.tool(timeout=1)(get_customer)

    assert handlers.names == ("bare", "empty", "renamed", "get_customer")
    assert (bare(1), empty(n=1), direct("x")) == (2, 3, "x")
    assert (handlers.get("renamed"), handlers.get("named")) == (named, None)
    assert (named.description, named.timeout, direct.timeout, bare.timeout) == ("Told.", 5, 1, 600)
    assert [tool.is_coroutine for tool in handlers] == [False, False, True, False]
    assert "bare" in handlers
    assert "named" not in handlers
    assert len(handlers) == 4
    assert repr(handlers) == "<Handlers 4 tools: bare, empty, renamed, get_customer>"


def test_definitions_for_the_agents_api() -> None:
    handlers = Handlers()
    handlers.tool(get_customer)
    assert handlers.definitions() == [
        {
            "type": "function",
            "name": "get_customer",
            "description": "Find a customer by id.",
            "parameters": {
                "type": "object",
                "properties": {"customer_id": {"type": "string"}},
                "required": ["customer_id"],
                "additionalProperties": False,
            },
        }
    ]


def test_definitions_for_the_responses_api_are_strict() -> None:
    handlers = Handlers()
    handlers.tool(get_customer, run_async=True)
    (definition,) = handlers.definitions("responses")
    assert definition["strict"] is True
    assert set(definition) == {"type", "name", "description", "parameters", "strict"}


def test_deferred_and_async_tools_say_so_and_bring_tool_search_once() -> None:
    handlers = Handlers()
    handlers.tool(get_customer, name="one", defer_loading=True, run_async=True)
    handlers.tool(get_customer, name="two", defer_loading=True)
    handlers.tool(get_customer, name="three")
    found = handlers.definitions()
    assert [(tool.get("defer_loading"), tool.get("async")) for tool in found[:3]] == [
        (True, True),
        (True, None),
        (None, None),
    ]
    assert found[3:] == [{"type": "tool_search"}]


def test_a_tool_that_is_off_for_good_is_not_declared() -> None:
    handlers = Handlers()
    handlers.tool(get_customer, is_enabled=False, defer_loading=True)
    assert handlers.definitions() == []


def test_a_missing_description_is_sent_empty_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def silent(n: int) -> int:
        return n

    handlers = Handlers()
    with caplog.at_level(logging.WARNING, "answerback"):
        handlers.tool(silent)
        assert handlers.definitions()[0]["description"] == ""
        handlers.definitions()
    assert [record.name for record in caplog.records] == ["answerback.handlers.registry"]


def test_a_name_that_is_taken_is_refused_with_both_sources() -> None:
    handlers = Handlers()
    handlers.tool(get_customer)

    def other(n: int) -> int:
        """Other."""
        return n

    with pytest.raises(ToolDefinitionError) as caught:
        handlers.tool(other, name="get_customer")
    assert "test_registry.get_customer:" in str(caught.value)
    assert "other:" in str(caught.value)
    assert handlers.names == ("get_customer",)


@pytest.mark.parametrize("name", ["", "has space", "dot.ted", "x" * 65, "이름", "a\n"])
def test_a_name_the_api_would_refuse_is_refused_here(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="1 to 64 characters"):
        Tool(name=name, parameters={"type": "object"}, handler=echo)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": True},
        {"settle": -1},
        {"effects": "write"},
        {"on_interrupted": "ask"},
        {"max_concurrency": 0},
        {"max_concurrency": 1.5},
        {"retry": 3},
        {"is_enabled": "yes"},
        {"defer_loading": 1},
        {"run_async": None},
        {"version": 2},
        {"timout": 1},
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match=next(iter(options))):
        Handlers().tool(get_customer, **options)


def test_a_callable_without_a_name_needs_one() -> None:
    class Thing:
        def __call__(self, n: int) -> int:
            return n

    with pytest.raises(ToolDefinitionError, match="name="):
        Handlers().tool(Thing())


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_a_tool_from_a_ready_schema_takes_the_raw_dict() -> None:
    def handler(arguments: dict[str, Any]) -> int:
        number: int = arguments["n"]
        return number

    def with_context(ctx: ToolContext, arguments: dict[str, Any]) -> str:
        return f"{ctx.call_id}{arguments['n']}"

    handlers = Handlers()
    plain = Tool(name="plain", description="Plain.", parameters=SCHEMA, handler=handler, effects="read")
    assert handlers.add(plain) is plain
    knowing = handlers.add(Tool(name="knowing", description="Knowing.", parameters=SCHEMA, handler=with_context))
    assert plain({"n": 3}) == 3
    bound = knowing.bind(b'{"n":1,"more":2}')
    assert bound.values == {"n": 1, "more": 2}
    assert knowing.body.call(bound, context()) == "c11"
    assert handlers.definitions()[0] == {
        "type": "function",
        "name": "plain",
        "description": "Plain.",
        "parameters": SCHEMA,
    }
    with pytest.raises(ArgumentsError, match="n: must be an integer"):
        plain.bind(b'{"n":"1"}')


def test_a_ready_schema_handler_takes_exactly_one_dict() -> None:
    def two(a: dict[str, Any], b: int) -> None: ...

    with pytest.raises(ToolDefinitionError, match="one parameter"):
        Tool(name="two", parameters=SCHEMA, handler=two)


def test_options_belong_where_our_own_tool_is_made() -> None:
    tool = Tool(name="plain", parameters=SCHEMA, handler=echo)
    with pytest.raises(ToolDefinitionError, match="already"):
        Handlers().add(tool, timeout=3)


@pytest.mark.parametrize("thing", [get_customer, 3, object()])
def test_something_that_is_no_tool_is_refused(thing: object) -> None:
    with pytest.raises(ConfigurationError, match=r"handlers\.tool"):
        Handlers().add(thing)


class Order(pydantic.BaseModel):
    order_id: str
    cents: int = 5


async def result_of(tool: Tool[..., Any], raw: bytes) -> Any:
    value = tool.body.call(tool.bind(raw), context(tool.name))
    return await value if inspect.isawaitable(value) else value


async def test_an_openai_function_tool_is_taken_unchanged() -> None:
    @function_tool
    def lookup(customer_id: str, limit: int = 3) -> str:
        """Look up."""
        return f"{customer_id}:{limit}"

    @function_tool(name="async_lookup", description="Async.", defer_loading=True)
    async def later(customer_id: str) -> str:
        return f"later {customer_id}"

    handlers = Handlers()
    taken = [handlers.add(tool, effects="read") for tool in (lookup, later)]
    assert [tool.definition() for tool in taken] == [lookup.definition, later.definition]
    assert await result_of(taken[0], b'{"customer_id":"c","limit":"4"}') == "c:4"
    assert await result_of(taken[1], b'{"customer_id":"c"}') == "later c"
    with pytest.raises(ArgumentsError, match="Arguments rejected: customer_id: missing; z: not a known parameter"):
        taken[0].bind(b'{"z":1}')
    assert taken[0].effects == "read"


@pytest.mark.parametrize("moved", [False, True])
async def test_a_pydantic_function_tool_of_openai_is_taken_unchanged(
    moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(order: Order) -> dict[str, Any]:
        return {"id": order.order_id, "cents": order.cents}

    made = pydantic_function_tool(Order, handler=handle, name="order", description="Order.")
    if moved:
        # As a release of the SDK would look that keeps its model elsewhere.
        monkeypatch.setattr(foreign, "_MODEL", "_moved")
    tool = Handlers().add(made)
    assert tool.definition() == made.definition
    assert await result_of(tool, b'{"order_id":"A-1"}') == '{"id":"A-1","cents":5}'
    with pytest.raises(ArgumentsError, match="cents: must be an integer"):
        tool.bind(b'{"order_id":"a","cents":"x"}')


@dataclasses.dataclass
class AgentsLookalike:
    """The public attributes of `agents.FunctionTool`."""

    name: str
    description: str
    params_json_schema: dict[str, Any]
    on_invoke_tool: Callable[[Any, str], Awaitable[Any]]
    strict_json_schema: bool = True
    is_enabled: bool | Callable[..., bool] = True


async def test_an_agents_sdk_function_tool_is_taken_unchanged() -> None:
    seen: list[Any] = []

    async def invoke(ctx: Any, text: str) -> str:
        seen.append(ctx)
        return f"{ctx.call_id} {text}"

    theirs = AgentsLookalike("theirs", "Theirs.", SCHEMA, invoke)
    tool = Handlers().add(theirs, timeout=3)
    assert tool.definition() == {
        "type": "function",
        "name": "theirs",
        "description": "Theirs.",
        "parameters": SCHEMA,
    }
    assert await result_of(tool, b'{"n":1}') == 'c1 {"n": 1}'
    assert isinstance(seen[0], ToolContext)
    assert (tool.timeout, tool.is_coroutine) == (3, True)


async def test_an_agents_sdk_tool_gets_that_sdks_own_context_where_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclasses.dataclass
    class TheirContext:
        context: Any
        tool_name: str
        tool_call_id: str
        tool_arguments: str

    class FakeModule:
        ToolContext = TheirContext

    async def invoke(ctx: Any, text: str) -> Any:
        return ctx

    monkeypatch.setitem(sys.modules, "agents.tool_context", FakeModule)
    tool = Handlers().add(AgentsLookalike("theirs", "Theirs.", SCHEMA, invoke))
    assert await result_of(tool, b'{"n":1}') == TheirContext(None, "theirs", "c1", json.dumps({"n": 1}))


async def test_is_enabled_of_the_agents_sdk_needs_our_own_where_it_is_a_function() -> None:
    async def invoke(ctx: Any, text: str) -> str:
        return text

    theirs = AgentsLookalike("theirs", "Theirs.", SCHEMA, invoke, is_enabled=always)
    with pytest.raises(ToolDefinitionError, match="is_enabled="):
        Handlers().add(theirs)
    assert await Handlers().add(theirs, is_enabled=False).enabled() is False
    assert await Handlers().add(dataclasses.replace(theirs, is_enabled=False)).enabled() is False


def test_a_tool_is_not_made_into_a_tool_again() -> None:
    tool = Handlers().tool(get_customer)
    with pytest.raises(ToolDefinitionError, match=r"handlers\.add"):
        Handlers().tool(tool)


def test_a_foreign_tool_is_named_by_its_class_in_a_clash() -> None:
    @function_tool
    def get_customer(customer_id: str) -> str:
        """Another."""
        return customer_id

    handlers = Handlers()
    handlers.add(get_customer)
    with pytest.raises(ToolDefinitionError, match=r"openai\.lib\.beta\.agents.*FunctionTool and"):
        handlers.tool(globals()["get_customer"])
