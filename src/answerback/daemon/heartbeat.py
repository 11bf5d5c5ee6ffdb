"""How well the event loop turns: a task that should wake twice a second, and how late it was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import anyio

BEAT = 0.5
"""Seconds between beats."""
DEAD_AFTER = 10.0
"""Seconds without a beat after which the loop counts as stuck."""


class Heartbeat:
    """Beats while it runs.

    Args:
        each: called at every beat, in the event loop.
        orphaned: called once when the process that started us is gone; None does not look.
    """

    def __init__(self, each: Callable[[], None], *, orphaned: Callable[[], None] | None = None) -> None:
        self.lag = 0.0
        """Seconds the last beat was late."""
        self._last = time.monotonic()
        self._each = each
        self._orphaned = orphaned
        self._parent = os.getppid()

    def __repr__(self) -> str:
        return f"<Heartbeat {self.lag:.3f} s late>"

    @property
    def well(self) -> bool:
        """Whether the last beat is recent."""
        return time.monotonic() - self._last < DEAD_AFTER

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            due = anyio.current_time() + BEAT
            await anyio.sleep(BEAT)
            self.lag = max(0.0, anyio.current_time() - due)
            self._last = time.monotonic()
            self._each()
            if self._orphaned is not None and os.getppid() != self._parent:
                self._orphaned()
                self._orphaned = None
