"""What a runtime is from entering its block to leaving it: served, drained, hurried, over."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from answerback.actors.discovery import Discover
from answerback.actors.kernel import DrainReport, Kernel
from answerback.actors.lifetime import Lifetime, not_running
from answerback.errors import RuntimeStateError

logger = logging.getLogger("answerback.runtime")


class Serving(ABC):
    """The block of a runtime. A subclass composes what runs in it."""

    def __init__(self) -> None:
        self._life: Lifetime | None = None
        self._left = False

    @abstractmethod
    def _compose(self) -> Lifetime:
        """Put together what runs; the store is open."""

    @abstractmethod
    async def _open_store(self) -> None:
        """Open the store."""

    @property
    def _kernel(self) -> Kernel:
        return self._started().kernel

    def _started(self) -> Lifetime:
        if self._life is None or self._left:
            raise not_running()
        return self._life

    async def __aenter__(self) -> Self:
        if self._life is not None:
            raise RuntimeStateError("a Runtime runs once; make a new one for another `async with`")
        await self._open_store()
        self._life = self._compose()
        await self._life.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        life = self._started()
        try:
            # A cancelled block still ends in order; what arrives here on asyncio is one native cancel, which hurries.
            with anyio.CancelScope(shield=True):
                await life.drain()
        finally:
            self._left = True
        report = life.kernel.report
        if not report.clean:
            logger.warning("stopped with work left: %s cut short, %s unsent", report.cut_short, report.unsent)
        if life.kernel.failure is not None and exc is None:
            raise life.kernel.failure

    async def serve(
        self, *, discover: Discover | None = None, shutdown_trigger: Callable[[], Awaitable[object]] | None = None
    ) -> DrainReport:
        """Run until it is time to stop, then stop in order as `drain` does.

        Args:
            discover: sessions to adopt, from now on. By default none are.
            shutdown_trigger: an async function that returns when it is time; without one, only cancelling this call,
                `drain` or a failed store ends it.

        Being cancelled is one way to stop: running handlers still get their time, and what they return is stored and
        sent, before the cancellation goes on. `hurry` shortens that, whoever asked to stop.

        Raises:
            StoreError: the store failed, so nothing could go on.
        """
        self.check_running()
        life = self._started()
        if discover is not None:
            life.kernel.discover(discover)
        try:
            await life.until(shutdown_trigger)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await life.drain()
            raise
        report = await life.drain()
        if life.kernel.failure is not None:
            raise life.kernel.failure
        return report

    async def drain(self, timeout: float | None = None) -> DrainReport:
        """Stop in order and close the store; afterwards only leaving the block is left to do.

        Args:
            timeout: seconds running handlers get to finish; `drain_timeout` when it is None.

        Being cancelled while it waits hurries it: handlers are cancelled at once, outcomes are still stored.
        """
        return await self._started().drain(timeout)

    def hurry(self) -> None:
        """End the patience of a drain: handlers are cancelled now, get half a second, and are abandoned.

        What they stored is kept; a `once` call that was cut is left for a verify hook or a person.
        """
        self._started().hurry()

    def check_running(self) -> None:
        """Raise the store's failure, or RuntimeStateError, when nothing can be asked of this runtime any more."""
        life = self._started()
        if life.kernel.failure is not None:
            raise life.kernel.failure
        if not life.running:
            raise not_running()
