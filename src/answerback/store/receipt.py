"""The receipt of one transaction in a writer's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from answerback.errors import StoreError
from answerback.store.batch import Counts


class QueuedWrite:
    """The receipt of one transaction."""

    __slots__ = ("_counts", "_error", "_join", "lazy", "number", "statements")

    def __init__(
        self, number: int, statements: Sequence[Any], *, lazy: bool, join: Callable[[int], anyio.Event]
    ) -> None:
        self._join = join
        self.number = number
        self.statements = statements
        self.lazy = lazy
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
        while not self.done:
            await self._join(self.number).wait()

    def finish(self, result: Counts | StoreError) -> None:
        """Note the result. The first one stays; the writer wakes the waiters of a whole batch at once."""
        if self.done:
            return
        if isinstance(result, StoreError):
            self._error = result
        else:
            self._counts = result
