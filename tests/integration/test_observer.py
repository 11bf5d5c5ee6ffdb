"""What an observer of a runtime is told, on the whole runtime against a harness."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback import Handlers, SQLiteStore, ToolContext
from answerback.actors.session import SessionActor
from answerback.model import CallKey, CallRecord, Unobserved
from answerback.runtime import Runtime
from answerback.testing import Harness, Script, call, calls, rule, run_harness, say

PATIENCE = 20.0
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="nobody")
SCRIPT = Script(rule(calls(call("pay", cents=5), call("fail")), say("Done.")))


class Recorder(Unobserved):
    """Keeps what it is told, in words."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str | None, str]] = []
        self.told: list[tuple[Any, ...]] = []

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        if before is None or before.state is not after.state:
            self.moves.append((after.name, before.state.value if before else None, after.state.value))

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        MARK.set(f"{name} {attempt} {sorted(checkpoints)}")
        self.told.append(("entered", name, attempt))

    def left(self, key: CallKey, attempt: int, ending: str) -> None:
        self.told.append(("left", attempt, ending))

    def repeated(self, key: CallKey, source: str) -> None:
        self.told.append(("repeated", source))

    def resent(self, key: CallKey, reason: str) -> None:
        self.told.append(("resent", reason))

    def crashed(self, session_id: str, reason: str) -> None:
        self.told.append(("crashed", reason))

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        if over:
            self.told.append(("over", kind))


def _handlers(seen: list[str]) -> Handlers:
    handlers = Handlers()

    @handlers.tool
    async def pay(cents: int) -> str:
        """Pay."""
        seen.append(MARK.get())
        return "paid"

    @handlers.tool
    def fail() -> str:
        """Fail."""
        seen.append(MARK.get())
        raise ValueError

    return handlers


async def _turn(harness: Harness, recorder: Recorder, handlers: Handlers, store: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with Runtime(
            harness.client, handlers=handlers, store=SQLiteStore(store), observer=recorder, cancel_grace=0.01
        ) as runtime:
            session = await runtime.open("k", agent={"model": "any"}, input="go")
            await session.wait()


async def test_every_move_entry_and_ending_is_told_in_the_handler_s_own_context(tmp_path: Path) -> None:
    recorder, seen = Recorder(), list[str]()
    async with run_harness(SCRIPT) as harness:
        await _turn(harness, recorder, _handlers(seen), tmp_path / "calls.db")
    for name in ("pay", "fail"):
        states = [(before, after) for tool, before, after in recorder.moves if tool == name]
        assert states == [
            (None, "requested"),
            ("requested", "started"),
            ("started", "finished"),
            ("finished", "submitted"),
            ("submitted", "acked"),
        ]
    assert {("entered", "pay", 1), ("entered", "fail", 1), ("left", 1, "ok"), ("left", 1, "failed")} <= set(
        recorder.told
    )
    assert ("over", "agent.session.turn.completed") in recorder.told
    assert sorted(seen) == ["fail 1 []", "pay 1 []"]
    assert MARK.get() == "nobody"


async def test_a_repeated_post_is_told_as_a_resend(tmp_path: Path) -> None:
    recorder = Recorder()
    async with run_harness(SCRIPT) as harness:
        harness.faults.add({"on": "post", "do": {"status": 503}, "times": 1})
        await _turn(harness, recorder, _handlers([]), tmp_path / "calls.db")
    assert ("resent", "retry") in recorder.told
    assert [fact for fact in recorder.told if fact[0] == "repeated"] == []


async def test_a_crash_of_an_actor_is_told_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, crashes = Recorder(), [ZeroDivisionError("secret")]
    hints = SessionActor._hints

    async def crash(self: SessionActor, message: Any) -> None:
        if crashes:
            raise crashes.pop()
        await hints(self, message)

    monkeypatch.setattr(SessionActor, "_hints", crash)
    async with run_harness(SCRIPT) as harness:
        await _turn(harness, recorder, _handlers([]), tmp_path / "calls.db")
    assert ("crashed", "ZeroDivisionError") in recorder.told


async def test_a_result_that_outlived_its_process_is_told_once_as_suppressed_and_resent(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    script = Script(rule(call("pay", cents=5), say("Done.")))
    async with run_harness(script) as harness:
        refuse = {"on": "post", "do": {"status": 503}, "times": 1000}
        with anyio.fail_after(PATIENCE):
            handlers = Handlers()
            done = anyio.Event()

            @handlers.tool
            async def pay(ctx: ToolContext, cents: int) -> str:
                """Pay."""
                harness.faults.add(refuse)
                done.set()
                return "paid"

            async with Runtime(
                harness.client, handlers=handlers, store=SQLiteStore(tmp_path / "calls.db"), observer=first,
                submit_grace=0.01,
            ) as runtime:  # fmt: skip
                await runtime.open("k", agent={"model": "any"}, input="go")
                await done.wait()
            harness.faults.clear()
        await _turn(harness, second, _handlers([]), tmp_path / "calls.db")
    assert second.moves[0] == ("pay", None, "submitted")
    assert second.told.count(("repeated", "restart")) == 1
    assert second.told.count(("resent", "restart")) == 1
    assert not [fact for fact in second.told if fact[0] == "entered"]
