"""Run an async test under a clock that jumps: whenever everybody sleeps, it is at once the time to wake.

Nothing that runs here may use a thread: while one works, everybody sleeps, and hours would pass.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio
import trio.testing

T = TypeVar("T")


def run_virtual(main: Callable[[], Awaitable[T]], backend: str) -> T:
    """Run `main` on a backend (asyncio or trio) in virtual time, and return what it returns."""
    if backend == "trio":
        clock = trio.testing.MockClock(autojump_threshold=0)
        return anyio.run(main, backend="trio", backend_options={"clock": clock})
    return anyio.run(main, backend="asyncio", backend_options={"loop_factory": JumpingLoop})


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is what its timers say."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return virtual seconds."""
        return self.now


class _JumpingSelector(selectors.BaseSelector):
    """Never waits: where nothing is ready it moves the loop's time to its next timer."""

    def __init__(self, loop: JumpingLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout != 0:
            if timeout is None:
                raise RuntimeError("everybody waits and no timer runs: nothing will ever happen again")
            self._loop.now += timeout
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()
