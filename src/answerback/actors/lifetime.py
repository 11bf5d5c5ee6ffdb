"""From opening the store to closing it: the one life of a runtime, in a task that no caller's cancellation reaches."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Awaitable, Callable

import anyio

from answerback.actors.clients import Clients
from answerback.actors.kernel import DrainReport, Kernel
from answerback.errors import RuntimeStateError
from answerback.handlers.detached import Detached, Raised
from answerback.handlers.execute import Executor
from answerback.store.base import Store

logger = logging.getLogger("answerback.runtime")

Trigger = Callable[[], Awaitable[object]]
"""An async function that returns when it is time to stop."""
HURRIED_GRACE = 0.5
"""Seconds a cancelled handler gets once a stop is hurried."""


class Lifetime:
    """Starts a kernel, and ends it in order.

    Args:
        kernel: what runs.
        executor: runs its handlers.
        store: opened by `start`, closed when all is over.
        clients: closed when all is over.
        patience: seconds running handlers get to finish when `drain` does not say.
    """

    def __init__(self, kernel: Kernel, executor: Executor, *, store: Store, clients: Clients, patience: float) -> None:
        self.kernel = kernel
        self.draining = False
        self._executor = executor
        self._store = store
        self._clients = clients
        self._patience = patience
        self.task: Detached[None] | None = None

    def __repr__(self) -> str:
        state = "not started" if self.task is None else "over" if self.kernel.over else "running"
        return f"<Lifetime {'draining' if self.draining and state == 'running' else state}>"

    @property
    def running(self) -> bool:
        """Whether anything can be asked of it."""
        return not (self.draining or self.kernel.over)

    async def start(self) -> None:
        """Start the kernel and follow what an earlier process left open.

        Raises:
            StoreError: the store failed while it was read; everything is closed again.
        """
        # In a task of its own: no cancel scope or timeout of the caller may tear a handler from its outcome.
        self.task = Detached(self._serve, context=contextvars.copy_context(), name="answerback runtime")
        await self.kernel.ready.wait()
        try:
            for record in await self._store.unfinished_sessions():
                if record.session_id is not None:
                    self.kernel.follow(record)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.drain(0.0)
            raise

    async def _serve(self) -> None:
        try:
            async with self._executor:
                await self.kernel.serve()
        finally:
            # Also when it failed: whoever waits, for the start or for a turn, must not wait for ever.
            self.kernel.ended()

    async def until(self, trigger: Trigger | None) -> None:
        """Return when the trigger does, or when the kernel ended without it.

        Raises:
            Exception: what the trigger raised, as it is.
        """
        raised: list[Exception] = []

        async def triggered() -> None:
            try:
                await (anyio.sleep_forever() if trigger is None else trigger())
            except Exception as error:  # noqa: BLE001 - handed on below, without the group around it
                raised.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(triggered)
            await self.kernel.stopping.wait()
            group.cancel_scope.cancel()
        if raised:
            raise raised[0]

    def hurry(self) -> None:
        """Give up the patience of a drain, now or when it comes: handlers are cancelled and soon abandoned."""
        self.kernel.hurry(grace=HURRIED_GRACE)

    async def drain(self, timeout: float | None = None) -> DrainReport:
        """Stop in order and close everything; see `Runtime.drain`."""
        assert self.task is not None, "it was not started"
        if not self.draining:
            self.draining = True
            self.kernel.stop(self._patience if timeout is None else timeout)
        await self._ended(self.task)
        if isinstance(self.task.ending, Raised):
            raise RuntimeStateError("the runtime's kernel failed; the store is closed") from self.task.ending.error
        return self.kernel.report

    async def _ended(self, task: Detached[None]) -> None:
        """Wait for the kernel's end, then close the store, however often the wait is cancelled; raise that at last.

        A shield holds against the cancellations of anyio and trio, not against `Task.cancel()` of asyncio.
        """
        cancelled: BaseException | None = None
        closed = False
        while not closed:
            try:
                with anyio.CancelScope(shield=cancelled is not None):
                    await task.wait()
                with anyio.CancelScope(shield=True):
                    await self._store.aclose()
                    await self._clients.aclose()
                closed = True
            except anyio.get_cancelled_exc_class() as error:
                cancelled = cancelled or error
                self.kernel.hurry()
        if cancelled is not None:
            raise cancelled


def not_running() -> RuntimeStateError:
    """Return the error for a Runtime used outside its block."""
    return RuntimeStateError("the Runtime is not running; use it inside `async with Runtime(...) as runtime:`")
