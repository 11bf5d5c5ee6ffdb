"""Sync handlers in threads: as many at once as the limit says, and none that keeps the process from exiting.

A thread cannot be stopped. What can be done: hold its slot until it really returns, so that a pile of hung handlers
cannot grow without end, and run it in a daemon thread, so that the interpreter does not wait for it at exit. trio's
threads are daemons; anyio's on asyncio are not, and CPython joins those for as long as they take. On asyncio the
thread is therefore our own, and is given what `anyio.from_thread` needs to work in it.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from answerback.handlers.detached import Raised, Returned

T = TypeVar("T")


class Threads:
    """A limit on running threads, shared by one executor."""

    def __init__(self, count: int) -> None:
        self._slots = anyio.CapacityLimiter(count)
        # trio wants a limiter too; ours has let the call through already.
        self._unlimited = anyio.CapacityLimiter(math.inf)

    def __repr__(self) -> str:
        return f"<Threads {self._slots.borrowed_tokens:g} of {self._slots.total_tokens:g} busy>"

    async def run(self, function: Callable[[], T], *, entered: Callable[[], None], scope: anyio.CancelScope) -> T:
        """Run `function` in a thread and return its value, or raise what it raised.

        Args:
            function: runs with a copy of the current context variables.
            entered: called on the event loop when a slot is free and the thread is about to start.
            scope: once cancelled, `anyio.from_thread.check_cancelled()` raises in the thread (on asyncio).
        """
        borrower = object()
        await self._slots.acquire_on_behalf_of(borrower)
        entered()

        def release() -> None:
            self._slots.release_on_behalf_of(borrower)

        ending: Returned[T] | Raised
        if _on_asyncio():
            ending = await _in_own_thread(function, release, scope)
        else:
            try:
                ending = await anyio.to_thread.run_sync(
                    _outcome_of, function, abandon_on_cancel=True, limiter=self._unlimited
                )
            finally:
                release()
        if isinstance(ending, Raised):
            raise ending.error
        return ending.value


def _outcome_of(function: Callable[[], T]) -> Returned[T] | Raised:
    # Handed over as a value: an event loop lets SystemExit out when it meets it as an exception.
    try:
        return Returned(function())
    except BaseException as error:  # noqa: BLE001 - raised again where the call is awaited
        return Raised(error)


def _on_asyncio() -> bool:
    trio = sys.modules.get("trio")
    return trio is None or not trio.lowlevel.in_trio_task()


async def _in_own_thread(
    function: Callable[[], T], release: Callable[[], None], scope: anyio.CancelScope
) -> Returned[T] | Raised:
    loop = asyncio.get_running_loop()
    token = anyio.lowlevel.current_token()
    context = contextvars.copy_context()
    context.run(_forget_async_library)
    returned = anyio.Event()
    endings: list[Returned[T] | Raised] = []

    def deliver(ending: Returned[T] | Raised) -> None:
        release()
        endings.append(ending)
        returned.set()

    def work() -> None:
        _adopt(token, scope)
        ending = _outcome_of(lambda: context.run(function))
        try:
            loop.call_soon_threadsafe(deliver, ending)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody waits for this any more.
            if not loop.is_closed():
                raise

    try:
        threading.Thread(target=work, name="answerback handler", daemon=True).start()
    except BaseException:
        # No thread, no slot: the machine has no more threads to give.
        release()
        raise
    await returned.wait()
    return endings[0]


def _adopt(token: anyio.lowlevel.EventLoopToken, scope: anyio.CancelScope) -> None:
    """Let `anyio.from_thread` work in this thread as in anyio's own.

    anyio has no public call for it; where a release moves the name, `from_thread` asks for a token by its own message.
    """
    names: Any = getattr(anyio.from_thread, "threadlocals", None)
    if names is not None:
        names.current_token = token
        names.current_cancel_scope = scope


def _forget_async_library() -> None:
    """Let the thread start an event loop of its own: anyio asks sniffio, whose variable was copied from the loop's."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        sniffio.current_async_library_cvar.set(None)
