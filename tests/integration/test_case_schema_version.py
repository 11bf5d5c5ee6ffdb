"""Case A21: a store of every earlier release is opened as it is, and its calls go on where they were."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback import CallRecord, CallState, Handlers, SQLiteStore
from answerback.errors import StoreVersionError
from answerback.model import CallKey
from answerback.store.migrations.migrate import load_steps
from answerback.store.reader import SQLiteReader
from integration.rig import running, until_row, until_state
from wire_player import PlayedSession, call, play

GOLDEN = sorted((Path(__file__).parents[1] / "unit" / "store" / "golden").glob("*.db"))
PATIENCE = 20.0
NAMES = {"c2": "refund", "c3": "refund", "c4": "close_account"}
ORDERS = {"c2": 2, "c3": 3, "c4": 4}


@pytest.fixture(params=GOLDEN, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "calls.db"))


@pytest.fixture
def session() -> PlayedSession:
    return PlayedSession(pending=[call(name, NAMES[name], {"order": ORDERS[name]}) for name in NAMES])


def build(ran: list[tuple[str, int]]) -> Handlers:
    """Return today's handlers of the calls in the files."""
    handlers = Handlers()

    @handlers.tool
    def refund(order: int) -> str:
        """Refund an order."""
        ran.append(("refund", order))
        return "refunded again"

    @handlers.tool(needs_approval=True)
    def close_account(order: int) -> str:
        """Close an account."""
        ran.append(("close_account", order))
        return "closed"

    return handlers


def stored_before(path: Path, call_id: str) -> bytes:
    """Return the result an older release stored."""
    with closing(sqlite3.connect(path)) as raw:
        found: bytes = raw.execute("SELECT outcome FROM calls WHERE call_id = ?", (call_id,)).fetchone()[0]
        return found


async def answered_before(path: Path) -> CallRecord:
    """Return the row of the call that was answered before."""
    async with SQLiteReader(path) as reader:
        key = CallKey("sess_1", "turn_1", "c1")
        return (await reader.calls_by_key([key]))[key]


async def test_every_call_of_an_older_store_goes_on_where_it_was(path: Path, session: PlayedSession) -> None:
    ran: list[tuple[str, int]] = []
    saved = stored_before(path, "c2")
    store = SQLiteStore(path)
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(ran), store=store) as stage:
            accepted = await stage.answered("c2", "c3")
            waiting = await until_state(stage, "c4", CallState.WAITING_APPROVAL)
            assert [result.call_id for result in player.results()] in (["c2", "c3"], ["c3", "c2"])
            assert ran == []
            await stage.runtime.approve(waiting.public_id[:10])
            await until_row(stage, "c4", lambda row: row.outcome is not None)
        first = await answered_before(path)
    # c2: the very bytes. c3: nobody knows, and it is said so. c4: the approval that was asked for then is given now.
    assert accepted["c2"].raw == saved
    assert (accepted["c3"].success, "unknown" in (accepted["c3"].error or "")) == (False, True)
    assert ran == [("close_account", 4)]
    assert (first.state, first.attempt, first.submit_status) == (CallState.ACKED, 1, "accepted")
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (load_steps()[-1].version,)


async def test_a_call_that_waits_for_an_approval_is_listed_before_and_after_the_store_is_opened(
    path: Path, session: PlayedSession
) -> None:
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build([]), store=SQLiteStore(path)) as stage:
            await stage.answered("c2", "c3")
            ref = await stage.runtime.attach("sess_1")
            (waiting,) = await ref.pending_approvals()
            assert waiting.key.call_id == "c4"
            assert json.loads(waiting.arguments) == {"order": 4}


async def test_a_call_the_store_does_not_know_is_new_because_a_migrated_store_is_complete(
    path: Path, session: PlayedSession
) -> None:
    ran: list[tuple[str, int]] = []
    session.require(call("c5", "refund", {"order": 5}))
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(ran), store=SQLiteStore(path)) as stage:
            assert (await stage.answered("c2", "c3", "c5"))["c5"].output == "refunded again"
    assert ran == [("refund", 5)]


async def test_a_call_answered_before_is_sent_again_and_not_run_when_the_server_lost_it(
    path: Path, session: PlayedSession
) -> None:
    ran: list[tuple[str, int]] = []
    saved = stored_before(path, "c1")
    session.require(call("c1", "refund", {"order": 1}))
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(ran), store=SQLiteStore(path)) as stage:
            assert (await stage.answered("c1", "c2", "c3"))["c1"].raw == saved
    assert ran == []


async def test_an_older_store_with_other_arguments_than_the_server_lists_runs_nothing(
    path: Path, session: PlayedSession
) -> None:
    ran: list[tuple[str, int]] = []
    session.pending[:] = [call("c4", "close_account", {"order": 5})]
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(ran), store=SQLiteStore(path)) as stage:
            status = stage.runtime.status
            await player.until(lambda: status().sessions[0].state == "quarantined" if status().sessions else False)
    assert (ran, player.results()) == ([], [])


async def test_a_runtime_refuses_a_newer_store_in_one_line_and_leaves_it_as_it_is(
    path: Path, session: PlayedSession
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    async with play(session) as player:
        with pytest.raises(StoreVersionError, match="schema 99") as refused:
            async with running(player, build([]), store=SQLiteStore(path)):
                pass
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_the_calls_are_those_the_files_hold() -> None:
    with closing(sqlite3.connect(GOLDEN[0])) as raw:
        found: Mapping[str, Any] = dict(raw.execute("SELECT call_id, name FROM calls").fetchall())
    assert {name: found[name] for name in NAMES} == NAMES
