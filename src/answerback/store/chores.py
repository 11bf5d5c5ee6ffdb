"""Work on the store file that is not a write: done by the writer's task, between two batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from answerback.errors import StoreError


class Chore:
    """One step that has the connection to itself, and what became of it."""

    def __init__(self, step: Callable[[], Awaitable[Any]]) -> None:
        self.step = step
        self._over = anyio.Event()
        self._result: Any = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Chore {'over' if self._over.is_set() else 'waiting'}>"

    def finish(self, result: Any) -> None:
        """Note what the step returned."""
        self._result = result
        self._over.set()

    def fail(self, error: Exception) -> None:
        """Note that the step failed, or will never run."""
        self._error = error
        self._over.set()

    async def result(self) -> Any:
        """Wait for the step; return what it returned, or raise what it raised. A cancelled wait leaves it queued.

        Raises:
            StoreError: the store closed before the step.
        """
        await self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result


class Chores:
    """The steps that wait for the writer."""

    def __init__(self) -> None:
        self._waiting: list[Chore] = []

    def __repr__(self) -> str:
        return f"<Chores {len(self._waiting)} waiting>"

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, step: Callable[[], Awaitable[Any]]) -> Chore:
        """Queue a step."""
        chore = Chore(step)
        self._waiting.append(chore)
        return chore

    async def run_one(self, see_through: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        """Run the oldest step; what it raises belongs to whoever asked for it."""
        if not self._waiting:
            return
        chore = self._waiting.pop(0)
        try:
            chore.finish(await see_through(chore.step))
        except Exception as error:  # noqa: BLE001 - raised again where the step was asked for
            chore.fail(error)

    def refuse(self, error: StoreError) -> None:
        """Fail everything that waits."""
        waiting, self._waiting = self._waiting, []
        for chore in waiting:
            chore.fail(error)
