"""The clock of the harness: unix seconds that can be moved forward by hand."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel


class Clock:
    """Tell the time and sleep on it, following anyio's clock (which a test may make virtual) plus what was advanced.

    Args:
        epoch: the unix time at the first reading; the machine's time if None.
    """

    def __init__(self, *, epoch: float | None = None) -> None:
        self._epoch = epoch
        self._origin: float | None = None
        self._advanced = 0.0
        # Made by the first sleeper: an event belongs to the loop it is made in, and this may be made in another.
        self._moved: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Clock advanced by {self._advanced:g} s>"

    def now(self) -> float:
        """Return unix seconds."""
        current = anyio.current_time()
        if self._origin is None:
            self._origin = current
            if self._epoch is None:
                self._epoch = time.time()
        assert self._epoch is not None
        return self._epoch + (current - self._origin) + self._advanced

    def advance(self, seconds: float) -> None:
        """Move the time forward and wake the sleepers whose time has come."""
        if seconds < 0:
            raise ValueError("a clock only goes forward; advance it by a positive number of seconds")
        self._advanced += seconds
        moved, self._moved = self._moved, None
        if moved is not None:
            moved.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep until `seconds` have passed on this clock; `advance` counts."""
        await self.sleep_until(self.now() + seconds)

    async def sleep_until(self, deadline: float) -> None:
        """Sleep until a time of this clock, which may have passed."""
        if deadline <= self.now():
            await anyio.lowlevel.checkpoint()
            return
        while (left := deadline - self.now()) > 1e-6:
            moved = self._moved = self._moved or anyio.Event()
            with anyio.move_on_after(left):
                await moved.wait()
