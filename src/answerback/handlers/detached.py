"""One body in a task of its own, which nobody's cancel scope contains.

A handler must not die with the actor that started it, must be cancelled once and no more, and must never end the
process. Task groups promise the opposite of all three, so this module speaks to each backend itself:

- asyncio: a plain task, held by a strong reference and cancelled natively, once. (anyio's scopes deliver a
  cancellation again on every turn of the loop: a body that swallows it was seen to take 110,000 of them a second.)
- trio: a system task with a cancel scope of its own. Trio repeats cancellation too, so the scope is closed to further
  ones as soon as the first had its chance.

asyncio re-raises SystemExit and KeyboardInterrupt of any task out of the event loop, whatever a task group around it
catches; they are caught here, inside the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

import anyio
import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Returned(msgspec.Struct, Generic[T_co], frozen=True):
    """The body ended with a value."""

    value: T_co


class Raised(msgspec.Struct, frozen=True):
    """The body ended with an exception of its own, which may be any BaseException."""

    error: BaseException


class Cancelled(msgspec.Struct, frozen=True):
    """The body ended because it was cancelled by us."""


Ending: TypeAlias = Returned[T] | Raised | Cancelled


class Detached(Generic[T]):
    """A running body.

    Args:
        body: an async function without arguments.
        context: the context variables it runs in; used up by it.
        name: shown by debuggers.
        finish: called once with the ending, inside the task, before anybody sees `done`.
    """

    def __init__(
        self,
        body: Callable[[], Awaitable[T]],
        *,
        context: contextvars.Context,
        name: str,
        finish: Callable[[Ending[T]], None] | None = None,
    ) -> None:
        self._name = name
        self._finish = finish
        self._event = anyio.Event()
        self._ending: Ending[T] | None = None
        self._cancelled = False
        self._leash = _Leash(body)
        self._task = _spawn(self._main, self._never_entered, context, name)

    def __repr__(self) -> str:
        state = "done" if self.done else "cancelled, running" if self._cancelled else "running"
        return f"<Detached {self._name} {state}>"

    @property
    def done(self) -> bool:
        """Whether it ended."""
        return self._ending is not None

    @property
    def cancel_requested(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def ending(self) -> Ending[T]:
        """How it ended; only once `done`."""
        assert self._ending is not None, "the body is still running"
        return self._ending

    async def wait(self) -> None:
        """Wait until it ended; cancelling the waiter does not touch the body."""
        await self._event.wait()

    def cancel(self) -> None:
        """Cancel the body, once."""
        if not self._cancelled and not self.done:
            self._cancelled = True
            self._task.cancel()

    def let_go(self) -> None:
        """End the task now, even if the body swallows cancellation: the body is closed, and what it holds is lost."""
        if not self.done:
            self._cancelled = True
            self._leash.let_go = True
            self._task.cancel_for_good()

    async def _main(self) -> None:
        ending: Ending[T]
        if self._cancelled:
            # Cancelled before its first step: the body is not entered at all.
            self._end(Cancelled())
            return
        try:
            ending = Returned(await self._leash)
        except _LetGo:
            ending = Cancelled()
        except BaseException as error:  # noqa: BLE001 - nothing a handler raises may leave its task
            ending = Cancelled() if self._task.was_cancelled(error) else Raised(error)
        self._end(ending)

    def _never_entered(self) -> None:
        if self._ending is None:
            self._end(Cancelled())

    def _end(self, ending: Ending[T]) -> None:
        if self._finish is not None:
            self._finish(ending)
        self._ending = ending
        self._event.set()


class _LetGo(BaseException):
    """Raised out of a body that was dropped."""


class _Leash(Generic[T]):
    """Drives the body one step at a time, so that it can be dropped between two steps.

    A body that swallows every cancellation would otherwise keep the event loop from ever closing.
    """

    def __init__(self, body: Callable[[], Awaitable[T]]) -> None:
        self._body = body
        self.let_go = False

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine = _as_coroutine(self._body)
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                request = coroutine.send(answer) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return cast("T", stop.value)
            answer, error = None, None
            try:
                answer = yield request
            except BaseException as thrown:  # noqa: BLE001 - handed on to the body
                error = thrown
            # trio sends its cancellation as an answer, asyncio throws it: neither is looked at any more.
            if self.let_go:
                _close(coroutine)
                raise _LetGo


async def _as_coroutine(body: Callable[[], Awaitable[T]]) -> T:
    return await body()


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    # A body that swallows even its own closing has nobody left to tell.
    with contextlib.suppress(BaseException):
        coroutine.close()


class _Task(Protocol):
    """What this module needs of a backend's task."""

    def cancel(self) -> None:
        """Cancel it once."""
        ...

    def cancel_for_good(self) -> None:
        """Cancel it again, whatever became of the first time."""
        ...

    def was_cancelled(self, error: BaseException) -> bool:
        """Whether `error`, raised in the task, is an outer cancellation and not the body's own doing."""
        ...


def _spawn(
    main: Callable[[], Coroutine[Any, Any, None]],
    never_entered: Callable[[], None],
    context: contextvars.Context,
    name: str,
) -> _Task:
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return _TrioTask(trio, main, context, name)
    return _AsyncioTask(main, never_entered, context, name)


class _AsyncioTask:
    def __init__(
        self,
        main: Callable[[], Coroutine[Any, Any, None]],
        never_entered: Callable[[], None],
        context: contextvars.Context,
        name: str,
    ) -> None:
        self._task = asyncio.get_running_loop().create_task(main(), context=context, name=name)
        # asyncio ends a task cancelled before its first step without running a line of it.
        self._task.add_done_callback(lambda _: never_entered())

    def cancel(self) -> None:
        self._task.cancel()

    def cancel_for_good(self) -> None:
        self._task.cancel()

    def was_cancelled(self, error: BaseException) -> bool:
        # A body may raise CancelledError of its own accord; only a requested one counts as ours (or the loop's).
        return self._task.cancelling() > 0 and _is_only(error, asyncio.CancelledError)


class _TrioTask:
    def __init__(
        self, trio: Any, main: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context, name: str
    ) -> None:
        self._trio = trio
        self._outer = trio.CancelScope()
        self._inner = trio.CancelScope()

        async def run() -> None:
            with self._outer, self._inner:
                await main()

        trio.lowlevel.spawn_system_task(run, name=name, context=context)

    def cancel(self) -> None:
        self._outer.cancel()
        self._trio.lowlevel.spawn_system_task(self._close_to_more, name="answerback cancel once")

    def cancel_for_good(self) -> None:
        self._inner.shield = False
        self._outer.cancel()

    def was_cancelled(self, error: BaseException) -> bool:
        return _is_only(error, self._trio.Cancelled)

    async def _close_to_more(self) -> None:
        # Two turns of the loop: in them the body was woken from where it waited, or came to its next checkpoint.
        for _ in range(2):
            await self._trio.lowlevel.cancel_shielded_checkpoint()
        self._inner.shield = True


def _is_only(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_only(member, kind) for member in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return isinstance(error, kind)
