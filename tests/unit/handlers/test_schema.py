"""Signatures and docstrings as JSON Schemas: the shapes other generators get wrong, and the refusals."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import sys
import types
import typing
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from answerback.errors import ToolDefinitionError
from answerback.handlers.context import ToolContext
from answerback.handlers.registry import Handlers
from answerback.handlers.schema import function_schema
from answerback.handlers.tool import Tool

if typing.TYPE_CHECKING:
    from fractions import Fraction as OnlyForCheckers


class Address(BaseModel):
    city: str
    zip: str | None = None


class Point(TypedDict):
    lat: float
    lon: float
    label: NotRequired[str]


@dataclasses.dataclass
class Money:
    cents: int
    unit: str = "KRW"


class Span(NamedTuple):
    start: int
    end: int = 0


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    value: int
    children: list[Node] = []


def ship(
    order_id: Annotated[str, Field(min_length=1)],
    to: Address,
    express: bool = False,
    note: str | None = None,
    mode: Literal["air", "sea"] = "air",
) -> str:
    """Ship an order."""
    return f"{type(to).__name__}:{to.city}:{express}:{note}:{mode}"


def near(p: Point) -> str:
    """Where."""
    return f"{p['lat']},{p['lon']},{p.get('label')}"


def pay(m: Money) -> str:
    """Pay."""
    return f"{type(m).__name__}:{m.cents}{m.unit}"


def conv(value: float, unit: str) -> str:
    """Convert."""
    return f"{value}{unit}"


class Shop:
    rate = 3

    def price(self, n: int) -> int:
        """Price."""
        return n * self.rate

    @classmethod
    def kinds(cls, prefix: str = "") -> list[str]:
        """Kinds."""
        return [prefix + "a"]

    @staticmethod
    def fixed(n: int) -> int:
        """Fixed."""
        return n


class Greeter:
    """Greets."""

    def __call__(self, who: str) -> str:
        return f"hello {who}"


def run(tool: Tool[..., Any], arguments: object) -> Any:
    bound = tool.bind(json.dumps(arguments).encode())
    return tool(**bound.values)


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = function_schema(function)["properties"]
    return found


def test_optional_parameters_stay_optional_and_no_titles_are_made() -> None:
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert function_schema(ship) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["order_id", "to"],
        "properties": {
            "order_id": {"type": "string", "minLength": 1},
            "to": {"$ref": "#/$defs/Address"},
            "express": {"type": "boolean", "default": False},
            "note": nullable,
            "mode": {"type": "string", "enum": ["air", "sea"], "default": "air"},
        },
        "$defs": {
            "Address": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": nullable},
                "required": ["city"],
            }
        },
    }


def test_values_arrive_as_the_types_of_the_signature() -> None:
    tool = Handlers().tool
    assert run(tool(ship), {"order_id": "A-1", "to": {"city": "Busan"}}) == "Address:Busan:False:None:air"
    assert run(tool(near), {"p": {"lat": 1, "lon": 2}}) == "1.0,2.0,None"
    assert run(tool(pay), {"m": {"cents": 5}}) == "Money:5KRW"


def test_a_key_a_typed_dict_may_lack_is_not_required() -> None:
    assert function_schema(near)["$defs"]["Point"]["required"] == ["lat", "lon"]


def test_partials_methods_classmethods_and_callable_objects_become_tools() -> None:
    handlers = Handlers()
    to_c = handlers.tool(functools.partial(conv, unit="C"), name="to_c")
    price = handlers.tool(Shop().price)
    kinds = handlers.tool(Shop.kinds)
    greet = handlers.tool(Greeter(), name="greet")
    assert handlers.names == ("to_c", "price", "kinds", "greet")
    assert [list(tool.parameters["properties"]) for tool in handlers] == [["value"], ["n"], ["prefix"], ["who"]]
    assert run(to_c, {"value": 20}) == "20.0C"
    assert run(price, {"n": 2}) == 6
    assert run(kinds, {"prefix": "b"}) == ["ba"]
    assert run(greet, {"who": "Kim"}) == "hello Kim"
    assert (greet.description, to_c.description) == ("Greets.", "Convert.")


def test_a_static_method_is_a_function_like_any_other() -> None:
    assert list(properties(Shop.fixed)) == ["n"]


def test_code_compiled_without_a_module_still_finds_its_types() -> None:
    source = (
        "from __future__ import annotations\n"
        "from typing_extensions import NotRequired, TypedDict\n"
        "from pydantic import BaseModel\n"
        "class Place(BaseModel): city: str\n"
        "class Spot(TypedDict): lat: float; label: NotRequired[str]\n"
        "def go(to: Place, at: Spot) -> str: return f'{type(to).__name__}:{to.city}:{at[\"lat\"]}'\n"
    )
    namespace: dict[str, Any] = {"__name__": "module_of_nobody"}
    exec(compile(source, "anywhere", "exec"), namespace)
    go: Callable[..., Any] = namespace["go"]
    tool = Handlers().tool(go)
    assert run(tool, {"to": {"city": "Busan"}, "at": {"lat": 1}}) == "Place:Busan:1.0"
    assert tool.parameters["$defs"]["Spot"]["required"] == ["lat"]


def test_a_type_of_an_enclosing_function_is_found_while_that_function_registers_the_tool() -> None:
    class Inner(BaseModel):
        x: int

    def take(one: Inner, many: list[Inner]) -> int:
        return one.x + sum(inner.x for inner in many)

    assert run(Handlers().tool(take), {"one": {"x": 1}, "many": [{"x": 2}]}) == 3


def test_a_local_type_that_is_gone_is_refused_by_name() -> None:
    def make() -> Callable[..., Any]:
        class Gone(BaseModel):
            x: int

        def take(one: Gone) -> int:
            return one.x

        return take

    with pytest.raises(ToolDefinitionError, match="'Gone'") as caught:
        function_schema(make())
    assert caught.value.parameter == "one"


def test_a_name_imported_for_checkers_only_is_refused_by_name() -> None:
    def take(one: OnlyForCheckers) -> str:
        return str(one)

    with pytest.raises(ToolDefinitionError, match="TYPE_CHECKING"):
        function_schema(take)


def test_a_return_annotation_nobody_can_resolve_does_no_harm() -> None:
    def take(one: int) -> OnlyForCheckers:
        raise NotImplementedError

    assert properties(take) == {"one": {"type": "integer"}}


def test_the_context_is_found_in_any_position_and_hidden() -> None:
    def first(ctx: ToolContext, q: str) -> None: ...
    def last(q: str, *, ctx: ToolContext[int]) -> None: ...
    def maybe(q: str, ctx: ToolContext | None = None) -> None: ...
    def without(q: str) -> None: ...

    schemas = [function_schema(function) for function in (first, last, maybe, without)]
    assert all(schema == schemas[-1] for schema in schemas)


def test_names_pydantic_uses_itself_are_fine_for_parameters() -> None:
    def odd(
        _hidden: int, model_config: int, self_: int, schema: int = 2, json: int = 3, model_fields_set: int = 4
    ) -> list[int]:
        """Odd names."""
        return [_hidden, model_config, self_, schema, json, model_fields_set]

    tool = Handlers().tool(odd)
    assert tool.parameters["required"] == ["_hidden", "model_config", "self_"]
    assert run(tool, {"_hidden": 1, "model_config": 5, "self_": 6, "json": 7}) == [1, 5, 6, 2, 7, 4]


def test_an_alias_of_the_author_is_the_name_on_the_wire() -> None:
    def take(a: Annotated[int, Field(alias="theAlias")] = 1, b: int = Field(3, alias="other")) -> tuple[int, int]:
        """Aliases."""
        return a, b

    tool = Handlers().tool(take)
    assert list(tool.parameters["properties"]) == ["theAlias", "other"]
    assert run(tool, {"theAlias": 5}) == (5, 3)


def test_field_constraints_read_the_same_as_a_default_and_in_annotated() -> None:
    def as_default(score: int = Field(..., ge=0, le=100, description="A score, 0-100")) -> None: ...
    def in_annotated(score: Annotated[int, Field(..., ge=0, le=100, description="A score, 0-100")]) -> None: ...

    schema = {
        "additionalProperties": False,
        "properties": {"score": {"description": "A score, 0-100", "maximum": 100, "minimum": 0, "type": "integer"}},
        "required": ["score"],
        "type": "object",
    }
    assert function_schema(as_default) == function_schema(in_annotated) == schema


def test_constraints_of_text_numbers_and_lists_are_all_shown() -> None:
    def fields(
        name: Annotated[str, Field(min_length=2, max_length=8, pattern="^[a-z]+$")],
        n: Annotated[float, Field(gt=0, lt=1, multiple_of=0.25)] = 0.5,
        tags: Annotated[list[str], Field(min_length=1, max_length=3)] = ["x"],  # noqa: B006 - pydantic copies it
    ) -> None: ...

    assert properties(fields) == {
        "name": {"maxLength": 8, "minLength": 2, "pattern": "^[a-z]+$", "type": "string"},
        "n": {"default": 0.5, "exclusiveMaximum": 1, "exclusiveMinimum": 0, "multipleOf": 0.25, "type": "number"},
        "tags": {"default": ["x"], "items": {"type": "string"}, "maxItems": 3, "minItems": 1, "type": "array"},
    }


def test_everyday_types_have_their_json_forms() -> None:
    def formats(
        when: dt.datetime,
        amount: decimal.Decimal,
        ident: uuid.UUID,
        color: Color,
        span: Span,
        uniq: set[str],
        free: dict[str, Any],
        tree: Node,
        pair: tuple[int, str],
    ) -> None: ...

    found = properties(formats)
    assert found["when"] == {"format": "date-time", "type": "string"}
    assert found["amount"] == {"anyOf": [{"type": "number"}, {"type": "string"}]}
    assert found["ident"] == {"format": "uuid", "type": "string"}
    assert found["color"] == {"$ref": "#/$defs/Color"}
    assert found["uniq"] == {"items": {"type": "string"}, "type": "array", "uniqueItems": True}
    assert found["free"] == {"additionalProperties": True, "type": "object"}
    assert found["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    definitions = function_schema(formats)["$defs"]
    assert definitions["Color"] == {"enum": ["red", "blue"], "type": "string"}
    assert definitions["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "title" not in json.dumps(definitions)


def test_a_title_the_author_gave_stays() -> None:
    def take(n: Annotated[int, Field(title="How many")]) -> None: ...

    assert properties(take) == {"n": {"title": "How many", "type": "integer"}}


def test_a_default_without_a_json_form_still_makes_the_parameter_optional() -> None:
    marker = object()

    def take(n: Any = marker) -> bool:
        """Take."""
        return n is marker

    tool = Handlers().tool(take)
    assert tool.parameters["properties"] == {"n": {}}
    assert run(tool, {}) is True


GOOGLE = """One line summary.

More text.

Args:
    a: first, with
        a wrapped line.
    b (str): second.

Returns:
    Something.

Raises:
    ValueError: never.
"""
TIGHT_GOOGLE = """One line summary.
Args:
    a: first.
"""
SPHINX = """One line summary.

:param a: first.
:param str b: second.
:type a: int
:return: Something.
"""
NUMPY = """One line summary.

Parameters
----------
a : int
    first.
b : str, optional
    second.

Returns
-------
str
    Something.
"""


@pytest.mark.parametrize(
    ("docstring", "description", "first", "second"),
    [
        (GOOGLE, "One line summary.\n\nMore text.", "first, with\na wrapped line.", "second."),
        (TIGHT_GOOGLE, "One line summary.", "first.", None),
        (SPHINX, "One line summary.", "first.", "second."),
        (NUMPY, "One line summary.", "first.", "second."),
        ("Just text.\n\nNote:\n    Stays.", "Just text.\n\nNote:\n    Stays.", None, None),
        (None, "", None, None),
    ],
    ids=["google", "google without a blank line", "sphinx", "numpy", "prose", "none"],
)
def test_a_docstring_gives_the_description_and_those_of_the_arguments(
    docstring: str | None, description: str, first: str | None, second: str | None
) -> None:
    def take(a: int, b: str = "x") -> str:
        return f"{a}{b}"

    take.__doc__ = docstring
    tool = Handlers().tool(take)
    assert tool.description == description
    assert tool.parameters["properties"]["a"].get("description") == first
    assert tool.parameters["properties"]["b"].get("description") == second


def test_the_docstring_wins_over_field_and_annotated_descriptions() -> None:
    def mixed(
        a: Annotated[int, "from Annotated"],
        b: Annotated[int, Field(description="from Field")],
        c: Annotated[int, Field(description="only Field")],
        d: Annotated[int, "only Annotated"],
    ) -> str:
        """Sum.

        Args:
            a: from the docstring.
            b: from the docstring too.
        """
        return f"{a}{b}{c}{d}"

    found = {name: described["description"] for name, described in properties(mixed).items()}
    assert found == {
        "a": "from the docstring.",
        "b": "from the docstring too.",
        "c": "only Field",
        "d": "only Annotated",
    }


def star(*numbers: int) -> None: ...
def stars(**extra: int) -> None: ...
def by_position(a: int, /) -> None: ...
def generator(a: int) -> typing.Iterator[int]:
    yield a


async def async_generator(a: int) -> typing.AsyncIterator[int]:
    yield a


def of_an_arbitrary_class(a: int, b: Shop) -> None: ...
def two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def same_alias(a: Annotated[int, Field(alias="b")], b: int) -> None: ...


def not_a_type(a: int) -> None: ...


not_a_type.__annotations__["a"] = "1 +"

REFUSED: list[tuple[Callable[..., Any], str | None, str]] = [
    (Shop.price, "self", "without its object"),
    (star, "numbers", "take a list"),
    (stars, "extra", "no schema"),
    (by_position, "a", "positional-only"),
    (eval("lambda a: a"), "a", "no annotation"),
    (generator, None, "generator"),
    (async_generator, None, "generator"),
    (of_an_arbitrary_class, "b", "no JSON form"),
    (two_contexts, "b", "one is enough"),
    (same_alias, None, "share one alias"),
    (not_a_type, "a", "not a type"),
    (Shop, None, "class"),
    (max, None, "cannot be read"),
]


@pytest.mark.parametrize(("function", "parameter", "words"), REFUSED)
def test_what_cannot_become_a_tool_is_refused_at_registration(
    function: Callable[..., Any], parameter: str | None, words: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=words) as caught:
        Handlers().tool(function, name="refused")
    assert (caught.value.tool, caught.value.parameter) == ("refused", parameter)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
def test_a_typed_dict_of_typing_is_refused_where_pydantic_cannot_read_it() -> None:
    def take(p: OldPoint) -> None: ...

    with pytest.raises(ToolDefinitionError, match="typing_extensions") as caught:
        function_schema(take)
    assert caught.value.parameter == "p"


class OldPoint(typing.TypedDict):
    lat: float


def test_a_wrapper_made_with_functools_wraps_keeps_the_schema() -> None:
    @functools.wraps(ship)
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return ship(*args, **kwargs)

    assert function_schema(wrapper) == function_schema(ship)


def test_a_module_function_is_no_method() -> None:
    module = types.ModuleType("made_up")
    exec("def double(n: int) -> int: return 2 * n", module.__dict__)
    assert properties(module.double) == {"n": {"type": "integer"}}
