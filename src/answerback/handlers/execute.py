"""Run handlers and verify hooks where nobody's cancellation reaches them, and turn every ending into a value.

Nothing is stored here and no session is known: whoever starts a call writes its START before and its outcome after.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeGuard, cast

import anyio
import msgspec

from answerback.errors import OutputError, RetryLater, RuntimeStateError, ToolError
from answerback.handlers import outcome as texts
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.callee import Callee
from answerback.handlers.context import ToolContext, call_ids, enter
from answerback.handlers.detached import Cancelled, Detached, Ending, Raised, Returned
from answerback.handlers.policy import Failed, Happened, NotHappened, Unknown, Verdict
from answerback.handlers.threads import Threads
from answerback.handlers.tool import Tool
from answerback.model import Observer, Outcome, Unobserved

logger = logging.getLogger("answerback.handlers.execute")

AnyTool: TypeAlias = Tool[..., Any]
OnException: TypeAlias = Callable[[ToolContext, BaseException], object]

_CLOSING = 1.0
"""Seconds `aclose` gives the event loop to end tasks it has let go of; they end in one turn of a loop that turns."""


class RetryRequest(msgspec.Struct, frozen=True):
    """The handler is to be started again; `after` seconds, or None for the policy's own pause."""

    after: float | None


class Interrupted(msgspec.Struct, frozen=True):
    """The body was cancelled and left no value: nobody knows what it did."""


Result: TypeAlias = Outcome | RetryRequest | Interrupted


class Execution:
    """One attempt of one call, running or ended. Made by `Executor.start`."""

    def __init__(self, executor: Executor, tool: AnyTool, bound: BoundArguments, context: ToolContext) -> None:
        self._executor = executor
        self._tool = tool
        self._context = context
        self._result: Result | None = None
        self._on_late: Callable[[Outcome], None] | None = None
        self._run = _Run(executor, tool.body, bound, context, encode=self._encode)
        self._run.variables.run(executor.observer.entered, context.key, tool.name, context.attempt, context.checkpoints)
        self._detached = self._run.detach(f"answerback {tool.name}", self._finish)

    def __repr__(self) -> str:
        state = type(self._result).__name__ if self._result is not None else "running" if self.started else "queued"
        late = ", abandoned" if self._on_late is not None else ""
        return f"<Execution {self._tool.name} {self._context.key} {state}{late}>"

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self._detached.done

    @property
    def started(self) -> bool:
        """Whether the body was entered; False while a sync handler waits for a thread."""
        return self._run.started

    @property
    def is_thread(self) -> bool:
        """Whether it occupies a thread right now, which cannot be stopped."""
        return self._run.in_thread

    @property
    def result(self) -> Result:
        """What came of it.

        Raises:
            RuntimeStateError: while it is not done.
        """
        if self._result is None:
            raise RuntimeStateError("The handler is still running; wait() for it before reading its result.")
        return self._result

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; returns `done`. Cancelling the waiter does not touch the body."""
        if not self.done:
            with anyio.move_on_after(timeout):
                await self._detached.wait()
        return self.done

    def cancel(self) -> None:
        """Cancel the body once; more calls do nothing. A running thread is only told, if it asks."""
        self._run.cancel(self._detached)

    def abandon(self, on_late: Callable[[Outcome], None]) -> None:
        """Stop waiting for it: an outcome that comes later goes to `on_late`, also one that is there already."""
        self._on_late = on_late
        if self._result is not None:
            self._deliver_late(self._result)

    def let_go(self) -> None:
        """End its task whatever the body does; for closing. A thread runs on, but nobody hears of it any more."""
        self._detached.let_go()

    def _encode(self, value: object) -> Outcome:
        return self._tool.encode(value, limit=self._executor.output_limit)

    def _finish(self, ending: Ending[Any]) -> None:
        try:
            self._result = self._settle(ending)
        except Exception as error:  # noqa: BLE001 - a strange exception class must not leave the call without an end
            logger.error("the ending of %s could not be read (%s)", self._tool.name, type(error).__name__)  # noqa: TRY400
            self._result = texts.failed(error, self._tool, texts.new_ref())
        self._executor.ended(self)
        self._executor.observer.left(self._context.key, self._context.attempt, _named(self._result))
        if self._on_late is not None:
            self._deliver_late(self._result)

    def _settle(self, ending: Ending[Any]) -> Result:
        if isinstance(ending, Cancelled):
            return Interrupted()
        if isinstance(ending, Returned):
            return cast("Outcome", ending.value)
        error = ending.error
        if self._run.cancel_requested and isinstance(error, anyio.get_cancelled_exc_class()):
            return Interrupted()
        ref = texts.new_ref()
        if not isinstance(error, (ToolError, RetryLater)):
            self._executor.report(self._context, error, ref, "the handler")
        retry = self._tool.retry
        left = retry is None or self._context.attempt < retry.attempts
        if isinstance(error, RetryLater) and left:
            pause = retry.pause(self._context.attempt) if retry is not None else None
            return RetryRequest(error.after if error.after is not None else pause)
        # Only what may pass is tried again: not an answer (ToolError), not a value that cannot be sent, not SystemExit.
        passing = isinstance(error, Exception) and not isinstance(error, (ToolError, OutputError))
        if passing and retry is not None and left:
            return RetryRequest(retry.pause(self._context.attempt))
        return texts.failed(error, self._tool, ref)

    def _deliver_late(self, result: Result) -> None:
        if self._on_late is not None and isinstance(result, Outcome):
            _contained(self._context, "on_late", self._on_late, result)


class _Run:
    """How a handler or hook is run: on the loop or in a thread, with its context variables."""

    def __init__(
        self,
        executor: Executor,
        callee: Callee,
        bound: BoundArguments,
        context: ToolContext,
        *,
        encode: Callable[[Any], Any],
    ) -> None:
        self._threads = executor.threads
        self.variables = executor.variables()
        self._callee = callee
        self._bound = bound
        self._context = context
        self._encode = encode
        self._scope = anyio.CancelScope()
        self.started = False
        self.in_thread = False
        self.cancel_requested = False

    def detach(self, name: str, finish: Callable[[Ending[Any]], None]) -> Detached[Any]:
        """Start it in a task of its own."""
        self.variables.run(enter, self._context)
        body = self._on_loop if self._callee.is_coroutine else self._off_loop
        return Detached(body, context=self.variables, name=name, finish=finish)

    def cancel(self, detached: Detached[Any]) -> None:
        """Cancel it once; in a thread only mark it."""
        if self.cancel_requested or detached.done:
            return
        self.cancel_requested = True
        if self.in_thread:
            self._scope.cancel()
        else:
            detached.cancel()

    async def _on_loop(self) -> Any:
        self.started = True
        return self._encode(await self._callee.call(self._bound, self._context))

    async def _off_loop(self) -> Any:
        try:
            awaitable, value = await self._threads.run(self._in_thread, entered=self._entered, scope=self._scope)
        finally:
            self.in_thread = False
        # A plain function may hand back a coroutine (a wrapper, another SDK's tool); it belongs on the loop.
        return self._encode(await value) if awaitable else value

    def _entered(self) -> None:
        self.started = self.in_thread = True

    def _in_thread(self) -> tuple[bool, Any]:
        value = self._callee.call(self._bound, self._context)
        return (True, value) if inspect.isawaitable(value) else (False, self._encode(value))


class Executor:
    """Starts handlers, and owns what they run in. Use it as an async context manager.

    Args:
        threads: how many sync handlers run at once.
        cancel_grace: seconds a cancelled body has before `aclose` lets go of it.
        context: the context variables handlers start from; those at the entry of the `async with` by default.
        on_exception: see `Handlers`.
        output_limit: characters of a result above which it is refused.
    """

    def __init__(
        self,
        *,
        threads: int = 32,
        cancel_grace: float = 2.0,
        context: contextvars.Context | None = None,
        on_exception: OnException | None = None,
        output_limit: int = texts.OUTPUT_LIMIT,
    ) -> None:
        self.cancel_grace = cancel_grace
        self.output_limit = output_limit
        self.observer: Observer = Unobserved()
        self._thread_count = threads
        self._base = context
        self._on_exception = on_exception
        self._threads: Threads | None = None
        self._running: set[Execution] = set()
        self._asking: set[Detached[Any]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._threads is not None else "new"
        return f"<Executor {state}, {len(self._running)} running>"

    async def __aenter__(self) -> Self:
        self._threads = Threads(self._thread_count)
        if self._base is None:
            self._base = contextvars.copy_context()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def threads(self) -> Threads:
        """Where sync handlers run.

        Raises:
            RuntimeStateError: outside `async with`.
        """
        if self._threads is None or self._closed:
            raise RuntimeStateError("The executor runs handlers inside its `async with` block only.")
        return self._threads

    def start(self, tool: AnyTool, bound: BoundArguments, context: ToolContext) -> Execution:
        """Start a handler; its body begins in a task of its own, soon after this returns.

        Raises:
            RuntimeStateError: outside `async with`.
        """
        execution = Execution(self, tool, bound, context)
        self._running.add(execution)
        return execution

    async def ask(self, tool: AnyTool, bound: BoundArguments, context: ToolContext, *, timeout: float) -> Verdict[Any]:
        """Ask the tool's verify hook what an interrupted call did, for at most `timeout` seconds.

        A hook that raises, hangs or returns something else counts as Unknown, and so does having none.

        Raises:
            RuntimeStateError: outside `async with`.
        """
        hook = tool.hook
        if hook is None:
            return Unknown()
        run = _Run(self, hook, bound, context, encode=_as_it_is)
        asking: Detached[Any] = run.detach(f"answerback verify {tool.name}", lambda _: self._asking.discard(asking))
        self._asking.add(asking)
        try:
            with anyio.move_on_after(timeout):
                await asking.wait()
        finally:
            run.cancel(asking)
        if not asking.done:
            logger.warning("the verify hook of %s took over %g seconds", tool.name, timeout, extra=call_ids(context))
            return Unknown()
        return self._verdict(tool, context, asking.ending)

    async def aclose(self) -> None:
        """Cancel every body once, wait up to `cancel_grace` seconds, then let go of what is left. Never hangs."""
        self._closed = True
        running: list[Execution | Detached[Any]] = [*self._running, *self._asking]
        for body in running:
            body.cancel()
        with anyio.move_on_after(self.cancel_grace, shield=True):
            for body in running:
                await body.wait()
        left = [body for body in running if not body.done]
        if not left:
            return
        logger.warning("%d handlers did not stop within %g seconds and were abandoned", len(left), self.cancel_grace)
        for body in left:
            body.let_go()
        with anyio.move_on_after(_CLOSING, shield=True):
            for body in left:
                await body.wait()

    def variables(self) -> contextvars.Context:
        """Return a fresh copy of the context variables handlers start from."""
        return (self._base or contextvars.copy_context()).copy()

    def ended(self, execution: Execution) -> None:
        """Forget an execution that has its result."""
        self._running.discard(execution)

    def report(self, context: ToolContext, error: BaseException, ref: str, who: str) -> None:
        """Log an exception by class and ref, without its text, and hand it to the application."""
        logger.error(
            "%s of %s raised %s (%s)",
            who,
            context.name,
            type(error).__name__,
            ref,
            extra={**call_ids(context), "ref": ref, "attempt": context.attempt},
        )
        if self._on_exception is not None:
            _contained(context, "on_exception", self._on_exception, context, error)

    def _verdict(self, tool: AnyTool, context: ToolContext, ending: Ending[Any]) -> Verdict[Any]:
        if isinstance(ending, Raised):
            self.report(context, ending.error, texts.new_ref(), "the verify hook")
        elif isinstance(ending, Returned):
            answer: object = ending.value
            if _is_verdict(answer):
                return answer
            logger.error(
                "the verify hook of %s returned a %s; it must return Happened, Failed, NotHappened or Unknown",
                tool.name,
                type(answer).__name__,
                extra=call_ids(context),
            )
        return Unknown()


def _named(result: Result) -> str:
    """Return what an observer is told of an ending."""
    match result:
        case Outcome(kind):
            return kind
        case RetryRequest():
            return "retry"
        case Interrupted():
            return "interrupted"


def _is_verdict(answer: object) -> TypeGuard[Verdict[Any]]:
    return isinstance(answer, (Happened, Failed, NotHappened, Unknown))


def _as_it_is(value: Any) -> Any:
    return value


def _contained(context: ToolContext, name: str, function: Callable[..., object], *arguments: object) -> None:
    """Call a function of the application; whatever it raises ends here, as a log record."""
    try:
        answer = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - it must not change what became of the call
        logger.error("%s raised %s", name, type(error).__name__, extra=call_ids(context))  # noqa: TRY400
        return
    if inspect.iscoroutine(answer):
        answer.close()
        logger.error("%s is async; it must be a plain function", name, extra=call_ids(context))
