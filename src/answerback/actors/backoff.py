"""How long to wait before trying again, and when to stop. Pure: no clock, no I/O; randomness is handed in."""

from __future__ import annotations

import random
from collections import deque

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Exponential pauses with jitter, in seconds."""

    initial: float = 0.25
    factor: float = 2.0
    maximum: float = 30.0
    jitter: float = 0.25
    """The share of a pause that is random: 0.25 takes up to a quarter off."""

    def pause(self, failures: int, rng: random.Random) -> float:
        """Return the pause after the n-th failure in a row (1-based), in seconds."""
        exponent = min(max(failures - 1, 0), 60)
        full = min(self.initial * self.factor**exponent, self.maximum)
        return full * (1 - self.jitter * rng.random())


class RestartLimit:
    """Allow at most `restarts` crashes in any `period` seconds."""

    def __init__(self, restarts: int = 5, period: float = 60.0) -> None:
        self.restarts = restarts
        self.period = period
        self._crashes: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<RestartLimit {len(self._crashes)} of {self.restarts} in {self.period:g} s>"

    def crashed(self, now: float) -> bool:
        """Record a crash at `now` (seconds, any monotonic clock); return whether a restart is still allowed."""
        while self._crashes and now - self._crashes[0] > self.period:
            self._crashes.popleft()
        self._crashes.append(now)
        return len(self._crashes) <= self.restarts

    @property
    def recent(self) -> int:
        """How many crashes count at the moment."""
        return len(self._crashes)
