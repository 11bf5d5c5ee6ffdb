"""What type checkers see of tools and verify hooks; pyright and mypy, both strict, are the test.

Lines marked with an ignore are errors on purpose: both checkers report an ignore that is not needed. The functions
run too, so that nothing here promises what the library does not do.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

from answerback.errors import ToolDefinitionError
from answerback.handlers.context import ToolContext
from answerback.handlers.policy import Failed, Happened, NotHappened, Unknown, Verdict
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool

handlers = Handlers()


class Bank:
    """Dependencies of an application."""


@handlers.tool
async def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
    """Refund an order."""
    return order_id


@handlers.tool(effects="read", timeout=10)
def count(words: list[str], *, twice: bool = False) -> int:
    """Count words."""
    return len(words) * (2 if twice else 1)


@handlers.tool()
async def with_deps(ctx: ToolContext[Bank]) -> None:
    """Use a bank."""
    assert_type(ctx.deps, Bank)


def test_a_tool_has_the_parameters_and_the_result_of_its_function() -> None:
    async def called(ctx: ToolContext) -> None:
        assert_type(await refund(ctx, "A-1", cents=3), str)

    assert_type(count(["a"], twice=True), int)
    assert count(["a"], twice=True) == 2
    assert callable(called)


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(TypeError):
        count([], "yes")  # type: ignore[call-arg, arg-type] # keyword-only
    with pytest.raises(TypeError):
        count()  # type: ignore[call-arg] # words is missing
    with pytest.raises(TypeError):
        count(3)  # type: ignore[arg-type] # not a list


def test_wrong_options_are_errors() -> None:
    def plain(n: int) -> int:
        """Plain."""
        return n

    with pytest.raises(ToolDefinitionError):
        handlers.tool(plain, effects="write")  # type: ignore[call-overload] # no such effect
    with pytest.raises(ToolDefinitionError):
        handlers.tool(plain, timout=3)  # type: ignore[call-overload] # misspelt


def test_the_result_type_is_covariant() -> None:
    def narrow(n: int) -> bool:
        """Narrow."""
        return n > 0

    wide: Tool[[int], object] = Tool[[int], bool].from_function(narrow)
    as_callable: Callable[[int], int] = Tool[[int], bool].from_function(narrow)
    assert wide(1) is True
    assert as_callable(1) is True


def test_a_ready_schema_tool_takes_its_handlers_parameters() -> None:
    def handler(arguments: dict[str, Any]) -> float:
        return 1.5

    tool = Tool(name="raw", description="Raw.", parameters={"type": "object"}, handler=handler)
    assert_type(tool({"a": 1}), float)
    assert tool({"a": 1}) == 1.5


@refund.verify
async def _(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened:
    return Happened(order_id) if cents else NotHappened()


def another() -> Tool[[ToolContext, str, int], Coroutine[Any, Any, str]]:
    async def pay(ctx: ToolContext, order_id: str, cents: int) -> str:
        """Pay."""
        return order_id

    return Tool[[ToolContext, str, int], Coroutine[Any, Any, str]].from_function(pay)


def test_hooks_of_an_async_tool_may_be_sync_and_may_leave_the_context_out() -> None:
    def synchronous(ctx: ToolContext, order_id: str, cents: int) -> Verdict[str]:
        return Unknown()

    async def without(order_id: str, cents: int) -> Happened[str] | Failed | Unknown:
        return Failed("no funds")

    def neither(order_id: str, cents: int) -> NotHappened:
        return NotHappened()

    for hook_is_taken in (
        another().verify(synchronous) is synchronous,
        another().verify(without) is without,
        another().verify(neither) is neither,
    ):
        assert hook_is_taken


def test_hooks_of_a_sync_tool_may_be_async_and_may_take_the_context() -> None:
    def fresh() -> Tool[[int], list[int]]:
        def numbers(n: int) -> list[int]:
            """Count."""
            return [n]

        return Tool[[int], list[int]].from_function(numbers)

    def plain(n: int) -> Happened[list[int]]:
        return Happened([n])

    async def asynchronous(n: int) -> Verdict[list[int]]:
        return Happened([n])

    async def with_context(ctx: ToolContext, n: int) -> Verdict[list[int]]:
        return Happened([n])

    fresh().verify(plain)
    fresh().verify(asynchronous)
    fresh().verify(with_context)


def test_hooks_with_other_parameters_or_answers_are_errors() -> None:
    async def too_few(ctx: ToolContext, order_id: str) -> Happened[str]:
        return Happened(order_id)

    async def other_type(ctx: ToolContext, order_id: int, cents: int) -> Happened[str]:
        return Happened("x")

    async def other_answer(ctx: ToolContext, order_id: str, cents: int) -> Happened[int]:
        return Happened(cents)

    def no_verdict(ctx: ToolContext, order_id: str, cents: int) -> str:
        return "x"

    with pytest.raises(ToolDefinitionError):
        another().verify(too_few)  # type: ignore[arg-type] # cents is missing
    with pytest.raises(ToolDefinitionError):
        another().verify(other_type)  # type: ignore[arg-type] # order_id is text
    # What a hook returns is seen when it is asked, so these two are caught by the checkers only.
    another().verify(other_answer)  # type: ignore[arg-type] # the output is text
    another().verify(no_verdict)  # type: ignore[arg-type] # not a verdict


def test_a_verdict_is_covariant() -> None:
    happened: Happened[object] = Happened("text")
    verdict: Verdict[object] = Happened[str]("text")
    assert happened == verdict
