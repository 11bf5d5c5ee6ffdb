"""An exception planted in an actor at work, and what must be so after it: what `test_supervisor` shares."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from answerback import Handlers
from answerback.actors.live import LiveSession
from answerback.store.memory import MemoryStore
from integration.rig import PATIENCE, Stage, live_of, running, until
from wire_player import PlayedSession, call, play


class PlantedError(Exception):
    """Raised where nothing of ours would raise."""


class Planted:
    """Raises once, at the first thing it is shown that matches, while it is armed."""

    def __init__(self, matches: Callable[[object], bool]) -> None:
        self._matches = matches
        self.armed = False
        self.raised = 0
        self.always = False

    def check(self, subject: object) -> None:
        if self.armed and self._matches(subject):
            self.armed = self.always
            self.raised += 1
            raise PlantedError


class Work:
    """Two sessions with a handler each: one whose actor will crash, and its sibling."""

    def __init__(self, stage: Stage, gates: dict[str, anyio.Event], entered: list[str]) -> None:
        self.stage = stage
        self.gates = gates
        self.entered = entered

    @property
    def live(self) -> LiveSession:
        return live_of(self.stage.runtime)

    async def crashed(self, times: int = 1) -> None:
        """Wait until the actor crashed, was restarted, and has read the session again."""
        await until(self.live, lambda: self.live.crashes >= times and self.live.state.status_at >= 0)

    async def finished(self, planted: Planted) -> None:
        """Check that the crash left the running handler and the sibling alone, and that both are answered."""
        sibling = live_of(self.stage.runtime, "sess_2")
        assert planted.raised == 1
        assert (self.live.crashes, sibling.crashes) == (1, 0)
        assert sorted(self.entered) == ["one", "two"]
        for gate in self.gates.values():
            gate.set()
        accepted = await self.stage.answered("c_one", "c_two")
        await self.stage.ref.wait()
        assert self.live.record.state == "open"
        assert {name: result.output for name, result in accepted.items()} == {"c_one": "one", "c_two": "two"}
        assert sorted(self.entered) == ["one", "two"]
        assert len(self.stage.player.results()) == 2


@asynccontextmanager
async def working(*, store: MemoryStore | None = None, **options: Any) -> AsyncGenerator[Work]:
    """Run two sessions until the handler of each was entered and waits."""
    gates = {"one": anyio.Event(), "two": anyio.Event()}
    entered: list[str] = []
    both = anyio.Event()
    handlers = Handlers()

    @handlers.tool
    async def hold(name: str) -> str:
        """Wait for the test, without regard to anything."""
        entered.append(name)
        if len(entered) == 2:
            both.set()
        await gates[name].wait()
        return name

    one = PlayedSession(session_id="sess_1", pending=[call("c_one", "hold", {"name": "one"})])
    two = PlayedSession(session_id="sess_2", pending=[call("c_two", "hold", {"name": "two"})])
    with anyio.fail_after(PATIENCE):
        async with play(one, two) as player, running(player, handlers, store=store, **options) as stage:
            for name in ("sess_1", "sess_2"):
                stage.refs[name] = await stage.runtime.attach(name)
            await both.wait()
            yield Work(stage, gates, entered)
