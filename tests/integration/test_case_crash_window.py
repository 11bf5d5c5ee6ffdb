"""Case A02: a process that dies between an effect and its stored result never repeats the effect by itself."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback import CallState, Handlers, NotHappened, SQLiteStore
from answerback.model import CallRecord
from integration.crash_worker import build
from integration.rig import rows, running, until_state
from wire_player import PlayedSession, Result, WirePlayer, call, play

WORKER = Path(__file__).with_name("crash_worker.py")
LIVES = 30.0
"""Seconds for the start of a program, which is slow on a busy machine, and two lives."""


class Letters:
    """The files of one test, and the two lives of the worker that uses them: one that is killed, one in this process."""

    def __init__(self, folder: Path, player: WirePlayer, declared: str, backend: str) -> None:
        self.path = folder / "calls.db"
        self.effects = folder / "letters"
        self._player = player
        self._options = {
            "base_url": player.base_url,
            "store": str(self.path),
            "effects": str(self.effects),
            "declared": declared,
            "backend": backend,
        }

    async def killed(self) -> None:
        """Run the first life, and check that it left one effect, one row that says STARTED, and sent nothing."""
        command = [sys.executable, "-W", "ignore", str(WORKER), json.dumps(self._options)]
        assert (await anyio.run_process(command, check=False)).returncode == -signal.SIGKILL
        assert len(self.lines()) == 1
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            assert connection.execute("SELECT state FROM calls").fetchall() == [(CallState.STARTED.value,)]
        assert self._player.results() == []

    async def answered(self) -> Result:
        """Run a second life until the session is idle; return the one result it sent."""
        async with running(self._player, self.handlers(), store=SQLiteStore(self.path)) as stage:
            await (await stage.runtime.attach("sess_1")).wait()
        (result,) = self._player.results()
        return result

    def handlers(self) -> Handlers:
        """Build the handlers as the worker does."""
        return build(self._options)

    def lines(self, name: str = "letters") -> list[list[str]]:
        """Return the words of each line of a log."""
        path = self.effects.with_name(name)
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def session() -> PlayedSession:
    return PlayedSession(pending=[call("c_a", "post_letter", {"to": "han"})])


async def test_a_call_declared_nothing_is_not_run_again_and_its_outcome_is_called_unknown(
    session: PlayedSession, tmp_path: Path, anyio_backend_name: str
) -> None:
    with anyio.fail_after(LIVES):
        async with play(session) as player:
            letters = Letters(tmp_path, player, "once", anyio_backend_name)
            await letters.killed()
            result = await letters.answered()
    assert result.success is False
    assert "unknown" in (result.error or "")
    assert len(letters.lines()) == 1


async def test_an_idempotent_call_is_run_again_under_the_same_key(
    session: PlayedSession, tmp_path: Path, anyio_backend_name: str
) -> None:
    with anyio.fail_after(LIVES):
        async with play(session) as player:
            letters = Letters(tmp_path, player, "idempotent", anyio_backend_name)
            await letters.killed()
            result = await letters.answered()
    assert (result.success, result.output) == (True, "posted")
    first, second = letters.lines()
    assert first[1] == second[1]
    assert (first[2], second[2]) == ("1", "2")


async def test_a_verify_hook_is_asked_once_and_the_handler_is_not_run(
    session: PlayedSession, tmp_path: Path, anyio_backend_name: str
) -> None:
    with anyio.fail_after(LIVES):
        async with play(session) as player:
            letters = Letters(tmp_path, player, "verify", anyio_backend_name)
            await letters.killed()
            result = await letters.answered()
    assert (result.success, result.output) == (True, "posted before")
    assert len(letters.lines()) == 1
    assert letters.lines("letters.asked") == [["han"]]


async def test_a_held_call_is_shown_and_waits_for_a_person(
    session: PlayedSession, tmp_path: Path, anyio_backend_name: str
) -> None:
    with anyio.fail_after(LIVES):
        async with play(session) as player:
            letters = Letters(tmp_path, player, "hold", anyio_backend_name)
            await letters.killed()
            store = SQLiteStore(letters.path)
            async with running(player, letters.handlers(), store=store) as stage:
                ref = await stage.runtime.attach("sess_1")
                record = await until_state(stage, "c_a", CallState.INDETERMINATE)
                shown = await undecided(letters.path)
                (status,) = stage.runtime.status().sessions
                assert (status.indeterminate, player.results()) == (1, [])
                decided = await stage.runtime.decide(record.public_id[:10], NotHappened())
                assert isinstance(decided, CallRecord)
                await ref.wait()
            (result,) = player.results()
    assert [(one["call_id"], one["state"]) for one in shown] == [("c_a", "indeterminate")]
    # The person said that it did not happen, and so had it posted a second time.
    assert [line[2] for line in letters.lines()] == ["1", "2"]
    assert result.output == "posted"
    assert (await rows(store))["c_a"].attempt == 2


async def undecided(store: Path) -> list[dict[str, Any]]:
    """Ask the command line, beside the running process, for the calls that wait for a decision."""
    command = [sys.executable, "-m", "answerback", "calls", "--db", str(store), "--undecided", "--json"]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 5, done.stderr
    calls: list[dict[str, Any]] = json.loads(done.stdout)["calls"]
    return calls
