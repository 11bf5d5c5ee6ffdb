"""One call's task as others see it, and its place in the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from answerback.actors.journal import Journal
from answerback.actors.messages import CallFinished
from answerback.model import CallKey


class Job:
    """One call's task: what may be asked of it while it runs."""

    def __init__(self, key: CallKey, journal: Journal, notify: Callable[[CallFinished], None], *, began: int) -> None:
        self.key = key
        self.journal = journal
        self.notify = notify
        self.began = began
        """When this process took the call up (microseconds): a call may wait in the queue for as long as it may run."""
        self.unwanted = False
        """Nobody waits for the result any more: its turn is over."""
        self.stopping = False
        """The runtime is being stopped and its patience is over."""
        self.approved = False
        """A person said yes to this call; its start claims that."""
        self.entered = False
        """Whether a handler body was entered and has not ended."""
        self.decided = anyio.Event()
        """Somebody changed the row from outside: look at it again."""
        self._scope: anyio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Job {self.key.call_id} {'entered' if self.entered else 'waiting'}>"

    def interrupt(self, *, unwanted: bool = False, stopping: bool = False) -> None:
        """Stop waiting for the handler or for its turn in the queue."""
        self.unwanted = self.unwanted or unwanted
        self.stopping = self.stopping or stopping
        if self._scope is not None:
            self._scope.cancel()

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called."""
        return self.unwanted or self.stopping

    async def until_interrupted(self, wait: Callable[[], Awaitable[object]]) -> bool:
        """Await `wait()`; return False when an interrupt came first."""
        if self.interrupted:
            return False
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                await wait()
            finally:
                self._scope = None
        return not scope.cancelled_caught


class Queue:
    """A place in every limiter a call needs, given back on exit."""

    def __init__(self, limiters: list[anyio.CapacityLimiter]) -> None:
        self._limiters = limiters
        self._held: list[anyio.CapacityLimiter] = []
        self.entered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for limiter in reversed(self._held):
            limiter.release()

    async def enter(self, *, not_before: int | None, until: int, now: Callable[[], int]) -> None:
        """Wait for `not_before`, then for the places, until `until` (microseconds); `entered` tells the outcome."""
        if not_before is not None:
            await anyio.sleep(max(0.0, (not_before - now()) / 1e6))
        with anyio.move_on_after(max(0.0, (until - now()) / 1e6)):
            for limiter in self._limiters:
                await limiter.acquire()
                self._held.append(limiter)
            self.entered = True


def log_ids(key: CallKey) -> dict[str, str]:
    """Return the ids a log record about a call carries."""
    return {"session_id": key.session_id, "turn_id": key.turn_id, "call_id": key.call_id}
