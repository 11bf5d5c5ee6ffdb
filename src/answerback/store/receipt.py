"""The receipt of one transaction in a writer's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from answerback.errors import StoreError
from answerback.store.batch import Counts


class QueuedWrite:
    """The receipt of one transaction."""

    __slots__ = ("_counts", "_error", "_event", "_urge", "number", "statements")

    def __init__(self, number: int, statements: Sequence[Any], *, urge: Callable[[int], None]) -> None:
        self._urge = urge
        self.number = number
        self.statements = statements
        self._event: anyio.Event | None = None
        self._counts: Counts | None = None
        self._error: StoreError | None = None

    def __repr__(self) -> str:
        state = "refused" if self._error is not None else "queued" if self._counts is None else "committed"
        return f"<QueuedWrite {self.number} {state}, {len(self.statements)} statements>"

    @property
    def done(self) -> bool:
        """Whether the transaction is committed (or has failed)."""
        return self._counts is not None or self._error is not None

    async def committed(self) -> Sequence[int]:
        """Wait for stable storage; return one count per statement. A cancelled wait leaves the write queued.

        Raises:
            StoreError: the transaction is not on stable storage and will not be.
        """
        await self.wait()
        if self._error is not None:
            raise self._error
        return self._counts or ()

    async def wait(self) -> None:
        """Wait until it is done, whichever way, and make it urgent."""
        if self.done:
            return
        if self._event is None:
            self._event = anyio.Event()
        self._urge(self.number)
        await self._event.wait()

    def finish(self, result: Counts | StoreError) -> None:
        """Tell the waiters. The first result stays."""
        if self.done:
            return
        if isinstance(result, StoreError):
            self._error = result
        else:
            self._counts = result
        if self._event is not None:
            self._event.set()
