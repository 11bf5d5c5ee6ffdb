"""Tools: versions, switches, verify hooks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from answerback.errors import ToolDefinitionError
from answerback.handlers.context import ToolContext
from answerback.handlers.policy import Happened, NotHappened, Unknown, Verdict
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool


def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
    """Refund an order."""
    return f"{order_id}:{cents}"


def test_the_version_changes_with_the_schema_and_the_declared_version_only() -> None:
    def other(order_id: str, cents: int) -> int:
        """Said otherwise."""
        return cents

    def wider(order_id: str, cents: float) -> None: ...

    first = Handlers().tool(refund).handler_version
    assert Handlers().tool(other).handler_version == first
    assert Handlers().tool(wider).handler_version != first
    assert Handlers().tool(refund, version="2").handler_version != first
    assert first


def test_a_tool_tells_what_it_is() -> None:
    tool = Handlers().tool(refund)
    assert repr(tool).startswith("<Tool refund once from ")
    assert "test_tool.refund:" in repr(tool)
    assert (tool.settle, tool.retry, tool.max_concurrency, tool.on_interrupted) == (30, None, None, None)
    assert (tool.is_async_declared, tool.defer_loading, tool.version) == (False, False, "")


async def test_a_switch_is_asked_each_time() -> None:
    answers = [True, False]

    async def later() -> bool:
        return answers.pop()

    def now() -> bool:
        return answers.pop()

    asynchronous = Handlers().tool(refund, is_enabled=later)
    assert [await asynchronous.enabled(), await asynchronous.enabled()] == [False, True]
    answers[:] = [True]
    assert await Handlers().tool(refund, is_enabled=now).enabled() is True
    assert await Handlers().tool(refund).enabled() is True


async def test_a_switch_that_raises_is_off_and_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("hunter2")

    with caplog.at_level(logging.ERROR, "answerback"):
        assert await Handlers().tool(refund, is_enabled=broken).enabled() is False
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_verify_hook_is_registered_and_returned_unchanged() -> None:
    tool = Handlers().tool(refund)
    assert not tool.has_verify

    @tool.verify
    async def verify(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened:
        return Happened(order_id)

    assert tool.has_verify
    assert tool.hook is not None
    assert tool.hook.function is verify
    assert ", verify from" in repr(tool)


def test_a_hook_may_leave_the_context_out_take_it_alone_or_be_sync() -> None:
    def without(order_id: str, cents: int) -> Verdict[str]:
        return Unknown()

    def plain(n: int) -> int:
        """Plain."""
        return n

    async def with_context(n: int, ctx: ToolContext, extra: int = 0) -> Verdict[int]:
        return Unknown()

    assert Handlers().tool(refund).verify(without) is without
    tool: Tool[..., Any] = Handlers().tool(plain)
    tool.verify(with_context)
    assert tool.hook is not None
    assert (tool.hook.is_coroutine, tool.hook.signature.context) == (True, "ctx")


def too_few(ctx: ToolContext, order_id: str) -> Unknown:
    return Unknown()


def too_many(ctx: ToolContext, order_id: str, cents: int, reason: str) -> Unknown:
    return Unknown()


def other_type(ctx: ToolContext, order_id: int, cents: int) -> Unknown:
    return Unknown()


@pytest.mark.parametrize(("hook", "parameter"), [(too_few, "cents"), (too_many, "reason"), (other_type, "order_id")])
def test_a_hook_with_other_parameters_is_refused_at_registration(hook: Callable[..., Any], parameter: str) -> None:
    tool: Tool[..., Any] = Handlers().tool(refund)
    with pytest.raises(ToolDefinitionError) as caught:
        tool.verify(hook)
    assert caught.value.parameter == parameter
    assert not tool.has_verify


def test_a_second_hook_is_refused() -> None:
    tool: Tool[..., Any] = Handlers().tool(refund)

    def hook(order_id: str, cents: int) -> Unknown:
        return Unknown()

    tool.verify(hook)
    with pytest.raises(ToolDefinitionError, match="one is enough"):
        tool.verify(hook)


def test_the_hook_of_a_ready_schema_takes_the_raw_dict() -> None:
    def handler(arguments: dict[str, Any]) -> str:
        return "done"

    tool = Tool(name="raw", parameters={"type": "object"}, handler=handler)

    @tool.verify
    def hook(arguments: dict[str, Any]) -> Happened[str]:
        return Happened(arguments["id"])

    assert tool.hook is not None
    assert tool.hook.function is hook
    assert tool.hook.whole == "arguments"
