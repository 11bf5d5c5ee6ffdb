"""Running handlers: isolation, cancellation, threads, retries, verify hooks, and an end that never hangs."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import pytest

from answerback.errors import OutputError, RetryLater, RuntimeStateError, ToolError
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.context import CallLogFilter, ToolContext
from answerback.handlers.execute import Execution, Executor, Interrupted, RetryRequest
from answerback.handlers.policy import Failed, Happened, NotHappened, Retry, Unknown
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool
from answerback.model import CallKey, Outcome

NOTHING = BoundArguments({})
SECRET = "hunter2"

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="-")


class Notebook:
    """A journal and powers that remember."""

    def __init__(self) -> None:
        self.checkpoints: list[tuple[str, bytes]] = []
        self.messages: list[str] = []

    async def checkpoint(self, key: CallKey, attempt: int, name: str, value: bytes) -> None:
        self.checkpoints.append((name, value))

    def progress(self, key: CallKey, message: str) -> None:
        self.messages.append(message)


def context(call_id: str = "c1", *, attempt: int = 1, notebook: Notebook | None = None) -> ToolContext:
    notes = notebook or Notebook()
    return ToolContext(CallKey("s", "t", call_id), name="tool", attempt=attempt, journal=notes, powers=notes)


def tool_of(function: Callable[..., Any], **options: Any) -> Tool[..., Any]:
    return Tool[..., Any].from_function(function, **options)


@asynccontextmanager
async def opened(**options: Any) -> AsyncGenerator[Executor]:
    with anyio.fail_after(5):
        async with Executor(**options) as executor:
            yield executor


async def result_of(function: Callable[..., Any], *, attempt: int = 1, **options: Any) -> Any:
    async with opened() as executor:
        execution = executor.start(tool_of(function, **options), NOTHING, context(attempt=attempt))
        assert await execution.wait(None)
        return execution.result


async def test_a_value_becomes_an_outcome_for_async_and_sync_handlers() -> None:
    async def asynchronous() -> dict[str, int]:
        return {"a": 1}

    def synchronous() -> str:
        return "b"

    assert await result_of(asynchronous) == Outcome("ok", output='{"a":1}')
    assert await result_of(synchronous) == Outcome("ok", output="b")


async def test_starting_is_synchronous_and_the_result_comes_later() -> None:
    entered = anyio.Event()

    async def handler() -> None:
        entered.set()

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        assert (execution.done, execution.started, entered.is_set()) == (False, False, False)
        assert repr(execution) == "<Execution handler s/t/c1 queued>"
        with pytest.raises(RuntimeStateError):
            _ = execution.result
        assert await execution.wait(5)
        assert (execution.done, execution.started) == (True, True)
        assert repr(execution) == "<Execution handler s/t/c1 Outcome>"
        assert repr(executor) == "<Executor open, 0 running>"


async def leaks() -> None:
    raise asyncio.CancelledError


async def exits() -> None:
    sys.exit(3)


def exits_in_a_thread() -> None:
    raise SystemExit(SECRET)


async def interrupts() -> None:
    raise KeyboardInterrupt


async def groups() -> None:
    raise ExceptionGroup("two", [KeyError(SECRET), OSError(5, SECRET)])


def stops() -> None:
    raise StopIteration(SECRET)


async def says_nothing() -> None:
    raise ValueError


@pytest.mark.parametrize("handler", [leaks, exits, exits_in_a_thread, interrupts, groups, stops, says_nothing])
async def test_whatever_a_handler_raises_ends_its_own_call_only(
    handler: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, BaseException]] = []

    def keep(ctx: ToolContext, error: BaseException) -> None:
        told.append((ctx.call_id, error))

    async def fine() -> str:
        await anyio.lowlevel.checkpoint()
        return "ok"

    async with opened(on_exception=keep) as executor:
        with caplog.at_level(logging.ERROR, "answerback"):
            bad = executor.start(tool_of(handler), NOTHING, context("bad"))
            good = executor.start(tool_of(fine), NOTHING, context("good"))
            assert await bad.wait(5)
            assert await good.wait(5)
    assert good.result == Outcome("ok", output="ok")
    assert isinstance(bad.result, Outcome)
    assert (bad.result.kind, bad.result.success) == ("failed", False)
    assert SECRET not in str(bad.result)
    assert [call_id for call_id, _ in told] == ["bad"]
    (record,) = caplog.records
    assert (record.__dict__["call_id"], record.__dict__["ref"]) == ("bad", bad.result.ref)
    assert type(told[0][1]).__name__ in record.getMessage()
    assert SECRET not in caplog.text


async def test_text_meant_for_the_model_is_sent_and_not_reported() -> None:
    told: list[BaseException] = []

    def keep(ctx: ToolContext, error: BaseException) -> None:
        told.append(error)

    async def handler() -> None:
        raise ToolError("No invoice 42")

    async with opened(on_exception=keep) as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        await execution.wait(5)
        assert execution.result == Outcome("failed", error="No invoice 42")
    assert told == []


async def test_a_result_that_cannot_be_sent_fails_the_call_and_is_reported() -> None:
    told: list[BaseException] = []

    def keep(ctx: ToolContext, error: BaseException) -> None:
        told.append(error)

    async def handler() -> bytes:
        return b"x"

    async with opened(on_exception=keep) as executor:
        execution = executor.start(tool_of(handler, retry=Retry()), NOTHING, context())
        await execution.wait(5)
        assert isinstance(execution.result, Outcome)
        assert "bytes" in (execution.result.error or "")
    assert isinstance(told[0], OutputError)


async def test_a_callback_that_fails_or_is_async_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def raising(ctx: ToolContext, error: BaseException) -> None:
        raise SystemExit(SECRET)

    async def asynchronous(ctx: ToolContext, error: BaseException) -> None: ...

    for callback in (raising, asynchronous):
        async with opened(on_exception=callback) as executor:
            execution = executor.start(tool_of(says_nothing), NOTHING, context())
            assert await execution.wait(5)
            assert isinstance(execution.result, Outcome)
    assert "on_exception raised SystemExit" in caplog.text
    assert "on_exception is async" in caplog.text
    assert SECRET not in caplog.text


async def test_the_output_limit_is_the_executors() -> None:
    async def handler() -> str:
        return "x" * 20

    async with opened(output_limit=10) as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        await execution.wait(5)
        assert isinstance(execution.result, Outcome)
        assert "20 characters" in (execution.result.error or "")


async def test_retry_later_asks_for_another_attempt() -> None:
    async def later() -> None:
        raise RetryLater

    async def later_by(seconds: float = 7) -> None:
        raise RetryLater(seconds)

    assert await result_of(later) == RetryRequest(None)
    async with opened() as executor:
        execution = executor.start(tool_of(later_by), BoundArguments({"seconds": 7}), context())
        await execution.wait(5)
        assert execution.result == RetryRequest(7)
    assert await result_of(later, retry=Retry(delay=3)) == RetryRequest(3)
    last = await result_of(later, retry=Retry(attempts=2), attempt=2)
    assert last.kind == "not_started"


async def test_an_exception_is_retried_only_where_the_tool_says_so_and_attempts_are_left() -> None:
    retry = Retry(attempts=3, delay=1, factor=2)
    assert (await result_of(says_nothing)).kind == "failed"
    assert await result_of(says_nothing, retry=retry) == RetryRequest(1)
    assert await result_of(says_nothing, retry=retry, attempt=2) == RetryRequest(2)
    assert (await result_of(says_nothing, retry=retry, attempt=3)).kind == "failed"


async def test_an_answer_or_an_exit_is_never_retried() -> None:
    async def answers() -> None:
        raise ToolError("no")

    assert (await result_of(answers, retry=Retry())).error == "no"
    assert (await result_of(exits, retry=Retry())).kind == "failed"


async def test_cancelling_interrupts_a_body_once_and_lets_it_clean_up() -> None:
    entered, counted = anyio.Event(), list[str]()

    async def handler() -> None:
        entered.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            counted.append("cancelled")
            raise

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        await entered.wait()
        execution.cancel()
        execution.cancel()
        assert await execution.wait(5)
        assert execution.result == Interrupted()
    assert counted == ["cancelled"]


async def test_a_body_cancelled_inside_its_own_task_group_is_interrupted() -> None:
    entered = anyio.Event()

    async def handler() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            entered.set()
            await anyio.sleep_forever()

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        await entered.wait()
        execution.cancel()
        assert await execution.wait(5)
        assert execution.result == Interrupted()


async def test_a_body_cancelled_before_its_first_step_is_not_entered() -> None:
    runs: list[int] = []

    async def handler() -> None:
        runs.append(1)

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        execution.cancel()
        assert await execution.wait(5)
        assert (execution.result, execution.started) == (Interrupted(), False)
    assert runs == []


async def test_a_value_returned_in_spite_of_cancellation_counts() -> None:
    entered = anyio.Event()

    async def handler() -> str:
        entered.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "kept"
        raise AssertionError

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        await entered.wait()
        execution.cancel()
        assert await execution.wait(5)
        assert execution.result == Outcome("ok", output="kept")


async def test_a_cancelled_waiter_and_a_cancelled_starter_leave_the_body_alone() -> None:
    entered, go = anyio.Event(), anyio.Event()

    async def handler() -> str:
        entered.set()
        await go.wait()
        return "done"

    started: list[Execution] = []

    async with opened() as executor:
        async with anyio.create_task_group() as group:

            async def start_and_wait() -> None:
                started.append(executor.start(tool_of(handler), NOTHING, context()))
                await started[0].wait(None)

            group.start_soon(start_and_wait)
            await entered.wait()
            group.cancel_scope.cancel()
        assert not started[0].done
        go.set()
        assert await started[0].wait(5)
        assert started[0].result == Outcome("ok", output="done")


async def test_waiting_with_a_timeout_says_whether_it_is_done() -> None:
    go = anyio.Event()

    async def handler() -> None:
        await go.wait()

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        assert await execution.wait(0) is False
        assert await execution.wait(0.01) is False
        go.set()
        assert await execution.wait(None) is True
        assert await execution.wait(0) is True


async def test_an_outcome_after_abandonment_goes_to_the_late_callback() -> None:
    go, late, arrived = anyio.Event(), list[Outcome](), anyio.Event()

    async def handler() -> str:
        await go.wait()
        return "late"

    def keep(outcome: Outcome) -> None:
        late.append(outcome)
        arrived.set()

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        execution.abandon(keep)
        assert repr(execution).endswith("abandoned>")
        go.set()
        await arrived.wait()
        assert late == [Outcome("ok", output="late")]
        execution.abandon(keep)
        assert len(late) == 2, "an outcome that is there already is not lost"


async def test_an_abandoned_body_that_ends_without_a_value_has_nothing_late() -> None:
    late: list[Outcome] = []

    async def handler() -> None:
        await anyio.sleep_forever()

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context())
        execution.abandon(late.append)
        execution.cancel()
        assert await execution.wait(5)
    assert late == []


async def test_handlers_see_the_variables_of_the_embedding_and_their_own_call() -> None:
    tenant.set("acme")

    def synchronous(n: int) -> str:
        return f"{tenant.get()}/{ToolContext.current().call_id}/{n}"

    async def asynchronous(n: int, ctx: ToolContext) -> str:
        assert ctx is ToolContext.current()
        seen = f"{tenant.get()}/{ctx.call_id}/{n}"
        tenant.set("changed inside")
        return seen

    async with opened() as executor:
        tenant.set("set later, by a task of ours")
        calls: list[tuple[str, Callable[..., Any]]] = [
            ("c1", synchronous),
            ("c2", synchronous),
            ("c3", asynchronous),
            ("c4", asynchronous),
        ]
        running = [
            executor.start(tool_of(function), BoundArguments({"n": number}), context(call_id))
            for number, (call_id, function) in enumerate(calls, 1)
        ]
        for execution in running:
            await execution.wait(5)
    assert [execution.result for execution in running] == [
        Outcome("ok", output=f"acme/c{number}/{number}") for number in (1, 2, 3, 4)
    ]
    with pytest.raises(RuntimeStateError):
        ToolContext.current()


async def test_log_records_of_a_handler_carry_the_ids_of_its_call() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    keep = Keep()
    keep.addFilter(CallLogFilter())
    logger = logging.getLogger("test.app")
    logger.addHandler(keep)

    def synchronous() -> None:
        logger.warning("in a thread")

    async def asynchronous() -> None:
        logger.warning("on the loop")

    try:
        async with opened() as executor:
            for function in (synchronous, asynchronous):
                await executor.start(tool_of(function), NOTHING, context("c7")).wait(5)
    finally:
        logger.removeHandler(keep)
    assert [(record.__dict__["call_id"], record.__dict__["tool"]) for record in records] == [("c7", "tool")] * 2


async def test_forty_sync_calls_peak_at_the_limit_and_the_loop_stays_free() -> None:
    lock = threading.Lock()
    running, peak = 0, 0
    full, release = threading.Event(), threading.Event()

    def handler() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
            if running == 8:
                full.set()
        release.wait(5)
        with lock:
            running -= 1

    async with opened(threads=8) as executor:
        executions = [executor.start(tool_of(handler), NOTHING, context(f"c{number}")) for number in range(40)]
        while not full.is_set():
            await anyio.lowlevel.checkpoint()  # the loop turns while eight threads block
        assert sum(execution.started for execution in executions) == 8
        assert all(execution.is_thread is execution.started for execution in executions)
        release.set()
        for execution in executions:
            assert await execution.wait(5)
    assert peak == 8


async def test_a_sync_handler_still_queued_is_cancelled_without_being_entered() -> None:
    entered, release = threading.Event(), threading.Event()
    runs: list[int] = []

    def blocks() -> None:
        entered.set()
        release.wait(5)

    def never() -> None:
        runs.append(1)

    async with opened(threads=1) as executor:
        first = executor.start(tool_of(blocks), NOTHING, context())
        while not entered.is_set():
            await anyio.lowlevel.checkpoint()
        queued = executor.start(tool_of(never), NOTHING, context())
        assert await queued.wait(0.01) is False
        assert (queued.started, queued.is_thread) == (False, False)
        queued.cancel()
        assert await queued.wait(5)
        assert queued.result == Interrupted()
        release.set()
        assert await first.wait(5)
        third = executor.start(tool_of(never), NOTHING, context())
        assert await third.wait(5), "the slot is free again"
    assert runs == [1]


async def test_a_running_thread_is_only_marked_and_its_slot_held_until_it_returns() -> None:
    entered, release, late = threading.Event(), threading.Event(), list[Outcome]()

    def blocks() -> str:
        entered.set()
        release.wait(5)
        return "late"

    async with opened(threads=1) as executor:
        execution = executor.start(tool_of(blocks), NOTHING, context())
        while not entered.is_set():
            await anyio.lowlevel.checkpoint()
        execution.cancel()
        assert await execution.wait(0.01) is False
        execution.abandon(late.append)
        waiting = executor.start(tool_of(lambda_like), NOTHING, context())
        assert await waiting.wait(0.01) is False
        release.set()
        assert await waiting.wait(5)
        assert await execution.wait(5)
    assert late == [Outcome("ok", output="late")]


def lambda_like() -> str:
    return "ran"


async def test_a_sync_handler_reaches_the_loop_through_anyio_and_its_context() -> None:
    notebook = Notebook()

    def handler(ctx: ToolContext) -> str:
        anyio.from_thread.run(ctx.checkpoint, "sent", [1])
        ctx.progress("half way")
        return str(anyio.run(asynchronous))

    async def asynchronous() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    async with opened() as executor:
        execution = executor.start(tool_of(handler), NOTHING, context(notebook=notebook))
        assert await execution.wait(5)
        assert execution.result == Outcome("ok", output="7")
    assert (notebook.checkpoints, notebook.messages) == ([("sent", b"[1]")], ["half way"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_sync_handler_may_ask_whether_it_was_cancelled() -> None:
    entered = threading.Event()

    def polite() -> None:
        entered.set()
        while True:
            anyio.from_thread.check_cancelled()
            threading.Event().wait(0.001)

    async with opened() as executor:
        execution = executor.start(tool_of(polite), NOTHING, context())
        while not entered.is_set():
            await anyio.lowlevel.checkpoint()
        execution.cancel()
        assert await execution.wait(5)
        assert execution.result == Interrupted()


async def test_a_plain_function_that_hands_back_a_coroutine_is_awaited_on_the_loop() -> None:
    loop_thread = threading.get_ident()

    async def inner() -> int:
        await anyio.lowlevel.checkpoint()
        return threading.get_ident()

    def outer() -> Awaitable[int]:
        return inner()

    assert await result_of(outer) == Outcome("ok", output=str(loop_thread))


def verified(hook: Callable[..., Any]) -> Tool[..., Any]:
    def handler(n: int) -> str:
        return str(n)

    tool = tool_of(handler)
    tool.verify(hook)
    return tool


async def happened(n: int) -> Happened[str]:
    return Happened(str(n))


def not_happened(n: int) -> NotHappened:
    return NotHappened()


async def failed(n: int, ctx: ToolContext) -> Failed:
    return Failed(ctx.call_id)


async def raises(n: int) -> Unknown:
    raise SystemExit(SECRET)


async def wrong(n: int) -> str:
    return "yes"


@pytest.mark.parametrize(
    ("hook", "verdict"),
    [
        (happened, Happened("3")),
        (not_happened, NotHappened()),
        (failed, Failed("c1")),
        (raises, Unknown()),
        (wrong, Unknown()),
    ],
)
async def test_a_hook_gives_a_verdict_and_anything_else_is_unknown(
    hook: Callable[..., Any], verdict: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as executor:
        found = await executor.ask(verified(hook), BoundArguments({"n": 3}), context(), timeout=5)
    assert found == verdict
    assert SECRET not in caplog.text


async def test_a_hook_that_hangs_is_unknown_and_cancelled() -> None:
    ended = anyio.Event()

    async def hangs(n: int) -> Unknown:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return Unknown()

    async with opened() as executor:
        assert await executor.ask(verified(hangs), BoundArguments({"n": 3}), context(), timeout=0.01) == Unknown()
        await ended.wait()


async def test_without_a_hook_the_answer_is_unknown() -> None:
    async with opened() as executor:
        assert await executor.ask(tool_of(lambda_like), NOTHING, context(), timeout=1) == Unknown()


async def test_closing_ends_every_body_and_never_hangs(caplog: pytest.LogCaptureFixture) -> None:
    entered, release = threading.Event(), threading.Event()
    ended: list[str] = []

    async def polite() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("polite")

    async def stubborn() -> None:
        while True:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                ended.append("stubborn")

    def blocked() -> None:
        entered.set()
        release.wait(5)

    with anyio.fail_after(5):
        async with Executor(cancel_grace=0.05) as executor:
            executions = [executor.start(tool_of(body), NOTHING, context()) for body in (polite, stubborn, blocked)]
            while not entered.is_set():
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
    release.set()
    assert [execution.result for execution in executions] == [Interrupted()] * 3
    assert ended[0] == "polite" or "polite" in ended
    assert 1 <= ended.count("stubborn") <= 5, "cancelled once, not on every turn of the loop"
    assert "2 handlers did not stop" in caplog.text
    assert repr(executor) == "<Executor closed, 0 running>"


async def test_closing_inside_a_cancelled_scope_still_gives_bodies_their_grace() -> None:
    cleaned: list[str] = []

    async def cleans_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("yes")

    with anyio.CancelScope() as scope:
        async with Executor() as executor:
            executor.start(tool_of(cleans_up), NOTHING, context())
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert cleaned == ["yes"]


async def test_an_executor_runs_nothing_outside_its_block() -> None:
    executor = Executor()
    assert repr(executor) == "<Executor new, 0 running>"
    with pytest.raises(RuntimeStateError):
        executor.start(tool_of(lambda_like), NOTHING, context())
    async with executor:
        pass
    with pytest.raises(RuntimeStateError):
        executor.start(tool_of(lambda_like), NOTHING, context())


async def test_handlers_registered_with_a_callback_keep_it_for_the_runtime() -> None:
    def callback(ctx: ToolContext, error: BaseException) -> None: ...

    assert Handlers(on_exception=callback).on_exception is callback
    assert not inspect.iscoroutinefunction(callback)


class OwnError(ToolError):
    def __init__(self, number: int) -> None:
        Exception.__init__(self, f"No invoice {number}")


class OwnRetry(RetryLater):
    def __init__(self) -> None:
        Exception.__init__(self)


async def test_subclasses_with_an_init_of_their_own_still_end_their_call() -> None:
    async def answers() -> None:
        raise OwnError(42)

    async def later() -> None:
        raise OwnRetry

    assert (await result_of(answers)).error == "No invoice 42"
    assert (await result_of(later)).kind == "failed"


async def test_a_hook_that_swallows_its_cancellation_does_not_keep_the_executor_open() -> None:
    async def stubborn(n: int) -> Unknown:
        while True:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                continue

    async with opened(cancel_grace=0.05) as executor:
        assert await executor.ask(verified(stubborn), BoundArguments({"n": 3}), context(), timeout=0.01) == Unknown()


async def test_a_machine_without_threads_fails_the_call_and_keeps_the_slot_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with opened(threads=1) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            execution = executor.start(tool_of(lambda_like), NOTHING, context())
            assert await execution.wait(5)
        assert isinstance(execution.result, Outcome)
        again = executor.start(tool_of(lambda_like), NOTHING, context())
        assert await again.wait(5)
        assert again.result == Outcome("ok", output="ran")
