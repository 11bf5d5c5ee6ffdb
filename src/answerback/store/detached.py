"""A task that belongs to nobody: no task group, cancel scope or timeout of a caller can end it.

Each backend has its own way to start one, and its own rule for the end of the run:

- asyncio: a bare task. `asyncio.run` cancels every task left and waits for it, and so do home-made shut-downs, while
  the program that still needs the task is only beginning to clean up. So a cancellation is absorbed until the task
  that started this one is over, too.
- trio: a system task. It is cancelled after the main task is over, so a cancellation always means the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from answerback.store.connection import in_asyncio_task


class Detached:
    """One detached task and the rule for ending it.

    `abandoned` is called once, when a cancellation was absorbed and the starter then ended without closing.
    """

    def __init__(self, *, abandoned: Callable[[], None]) -> None:
        self._abandoned = abandoned
        self._starter: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._absorbed = 0

    def __repr__(self) -> str:
        return f"<Detached on {'trio' if self._task is None else 'asyncio'}, {self._absorbed} cancellations absorbed>"

    def start(self, function: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Start `function` as a task of its own. It must not raise."""
        if in_asyncio_task():
            self._starter = asyncio.current_task()
            # Kept here because the loop keeps weak references only.
            self._task = asyncio.get_running_loop().create_task(_call(function), name=name)
        else:
            # Imported here because trio is optional: whoever runs on it has it.
            from trio.lowlevel import spawn_system_task

            spawn_system_task(function, name=name)

    def absorb(self) -> bool:
        """Decide about a cancellation that reached the task: True means go on, False means finish and end."""
        if self._task is None or self._starter is None or self._starter.done():
            return False
        self._task.uncancel()
        self._absorbed += 1
        if self._absorbed == 1:
            self._starter.add_done_callback(lambda _: self._abandoned())
        return True


async def _call(function: Callable[[], Awaitable[None]]) -> None:
    await function()
