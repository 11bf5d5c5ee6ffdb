"""Thousands of finished sessions leave nothing behind, and a session of thousands of turns stays small."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import anyio
import pytest

from answerback import CallState, Handlers, Runtime, SQLiteStore
from answerback.actors.journal import CLOSED_KEPT
from answerback.actors.session_state import RECENT_EVENTS
from answerback.store.memory import MemoryStore
from answerback.testing import Script, call, rule, run_harness, say
from integration.fleet import counted, pinging
from integration.rig import answering, live_of
from wire_player import PlayedSession
from wire_player import call as asked

MEBIBYTE = 1 << 20
FIGURES = (
    tracemalloc.Filter(True, "*/answerback/actors/*"),
    tracemalloc.Filter(True, "*/answerback/handlers/*"),
    tracemalloc.Filter(True, "*/answerback/store/*"),
    tracemalloc.Filter(True, "*/answerback/wire/*"),
    tracemalloc.Filter(True, "*/answerback/runtime.py"),
    tracemalloc.Filter(True, "*/answerback/sessions.py"),
)
"""Whose memory counts: the library's, not that of the harness in the same process."""


async def _leave_nothing_behind(path: Path, sessions: int) -> None:
    """Drive sessions one after another; what lives is counted at each quarter."""
    script = Script(rule("ping", call("ping"), say("done")))
    ran: list[str] = []
    held: list[int] = []
    tracemalloc.start()
    try:
        async with run_harness(script) as harness:
            store = SQLiteStore(path)
            async with Runtime(
                harness.client, handlers=pinging(ran), store=store, passivate_after=0.02, poll_interval=3600
            ) as runtime:
                most = 0
                for number in range(1, sessions + 1):
                    session = await runtime.open(f"k{number}", agent={"model": "m"}, input="ping")
                    assert (await session.wait()).output_text == "done"
                    most = max(most, len(runtime.status().sessions))
                    if number % (sessions // 4) == 0:
                        while runtime.status().sessions or runtime._kernel.supervisor._watches:
                            await anyio.sleep(0.01)
                        assert counted() == {"LiveSession": 0, "Mailbox": 0, "SessionActor": 0}
                        assert runtime.status().passivated == number
                        assert runtime.status().streams == 0
                        taken = tracemalloc.take_snapshot().filter_traces(FIGURES)
                        held.append(sum(figure.size for figure in taken.statistics("filename")))
        assert len(ran) == sessions
        # At no time more than those that were not idle for long enough yet.
        assert most <= 40
        assert held[3] - held[1] < max(0.1 * held[0], MEBIBYTE)
        assert held[3] < 4 * MEBIBYTE, "what lives has the size of what is open, not of what was seen"
    finally:
        tracemalloc.stop()


async def test_finished_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    with anyio.fail_after(120):
        await _leave_nothing_behind(tmp_path / "calls.db", 200)


@pytest.mark.full
async def test_four_thousand_finished_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    with anyio.fail_after(1800):
        await _leave_nothing_behind(tmp_path / "calls.db", 4000)


async def _stay_small(calls: int) -> None:
    """Answer many calls in one session, then let the first be asked for again."""
    handlers = Handlers()
    ran: list[int] = []

    @handlers.tool
    async def note(number: int) -> str:
        """Answer."""
        ran.append(number)
        return f"noted {number}"

    session = PlayedSession()
    async with answering(session, handlers, store=MemoryStore(), poll_interval=0.5) as stage:
        first = asked("c0", "note", {"number": 0}, turn_id="turn_0")
        for number in range(calls):
            session.require(asked(f"c{number}", "note", {"number": number}, turn_id=f"turn_{number}"))
            await stage.answered(f"c{number}")
        live = live_of(stage.runtime)
        gc.collect()
        assert len(live.state._recent) <= RECENT_EVENTS
        assert len(live.journal._closed) <= CLOSED_KEPT
        assert len(live.journal.entries) < 50
        session.require_again(first)
        first_sent, again = (await stage.posted("c0", 2))[:2]
        assert first_sent.raw == again.raw
        assert ran == list(range(calls))
        (row,) = [record for record in await stage.runtime.calls(limit=2 * calls) if record.key.call_id == "c0"]
        assert row.state in {CallState.SUBMITTED, CallState.FINISHED, CallState.ACKED}


async def test_a_call_answered_long_ago_and_asked_again_is_not_run_again() -> None:
    await _stay_small(CLOSED_KEPT + 50)
