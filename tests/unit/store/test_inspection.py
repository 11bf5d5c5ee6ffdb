"""Facts, checks and copies of a store file, beside the process that owns it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from answerback.errors import StoreUnavailableError, StoreVersionError
from answerback.model import CallKey, CallState, SessionRecord
from answerback.store.base import DecideApproval, PutApproval, PutCheckpoint, PutSession, PutSubstitute, Write
from answerback.store.conformance.builders import KEY, finished, moved, observed, started
from answerback.store.inspection import back_up, check, inspect
from answerback.store.retention import DAY
from answerback.store.sqlite import SQLiteStore

OTHER = CallKey("sess_1", "turn_1", "call_2")


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        session = SessionRecord(local_id="l", session_id="sess_1")
        await store.write(PutSession(session), observed(), started(), finished()).committed()
        await store.write(
            observed(OTHER, observed_at=2),
            moved(CallState.WAITING_APPROVAL, source=CallState.REQUESTED, key=OTHER),
            PutApproval(key=OTHER, digest="h", at=4),
            DecideApproval(key=OTHER, verdict="approved", at=5),
            PutSubstitute(key=KEY, element=b"{}", reason="r", at=6),
            PutCheckpoint(key=KEY, attempt=1, name="n", value=b"1", at=6),
        ).committed()
    return path


async def test_facts_are_read_while_the_store_is_in_use(path: Path) -> None:
    async with SQLiteStore(path) as store:
        facts = inspect(path)
        assert (facts.store_id, facts.incarnation) == (store.info.store_id, 2)
        assert facts.owner is not None
        assert facts.calls == {"finished": 1, "waiting_approval": 1}
        assert facts.sessions == {"open": 1}
        assert facts.oldest_open is not None
        assert facts.oldest_open.id == KEY.digest
        assert facts.schema == facts.newest_schema
        assert facts.log_bytes > 0
    assert inspect(path).owner is None


async def test_what_a_pruning_would_give_back_is_told(path: Path) -> None:
    key = CallKey("old", "t", "c")
    async with SQLiteStore(path) as store:
        acked = moved(CallState.ACKED, source=CallState.FINISHED, key=key)
        old = SessionRecord(local_id="o", session_id="old")
        life: list[Write] = [
            observed(key, arguments=b"a" * 1_000),
            started(key),
            finished(key, outcome=b"b" * 500),
            acked,
        ]
        await store.write(PutSession(old), *life).committed()
    now = 100 * int(DAY) * 1_000_000
    assert inspect(path, now=now).prunable_bytes == 1_500
    assert inspect(path, now=1).reclaimable_bytes == inspect(path, now=1).free_bytes


async def test_a_good_store_has_no_problems(path: Path) -> None:
    assert check(path) == []
    async with SQLiteStore(path):
        assert check(path) == []


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("UPDATE calls SET open = 0 WHERE id = 1", "open flag"),
        ("UPDATE sessions SET session_id = 'another'", "belongs to a session"),
        (
            "DROP TRIGGER calls_moved; UPDATE calls SET state = 'started', token = NULL WHERE id = 1",
            "attempt with a token",
        ),
        ("DROP TRIGGER calls_outcome_is_final; UPDATE calls SET outcome = NULL WHERE id = 1", "to be sent is there"),
        ("UPDATE calls SET outcome_kind = NULL WHERE id = 1", "a kind and a hash"),
        ("DROP TRIGGER calls_outcome_is_final; UPDATE calls SET outcome = NULL WHERE id = 1", "substitute replaces"),
        ("DELETE FROM approvals", "was asked about"),
        ("UPDATE approvals SET decided_at = NULL", "has a moment"),
        ("UPDATE approvals SET verdict = 'rejected', used_at = 3", "has a moment"),
        ("DELETE FROM transitions WHERE seq = 3", "ends where its row is"),
        ("DROP TRIGGER calls_moved; UPDATE calls SET state = 'submitted' WHERE id = 1", "ends where its row is"),
        ("DELETE FROM transitions WHERE seq = 2 AND call = 1", "has no gaps"),
        ("UPDATE transitions SET source = 'acked' WHERE seq = 2 AND call = 1", "has no gaps"),
        ("UPDATE transitions SET incarnation = 9 WHERE seq = 1", "has not been"),
        ("UPDATE transitions SET target = 'started', attempt = 1 WHERE seq = 3", "once per attempt"),
        ("UPDATE calls SET outcome_hash = 'x' WHERE id = 1", "what its hash says"),
        ("UPDATE calls SET digest = 'x' WHERE id = 1", "hash of its key"),
        ("DELETE FROM meta", "says once which it is"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM calls WHERE id = 1", "belongs to a call that is there"),
    ],
)
async def test_every_broken_promise_is_found(path: Path, damage: str, rule: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.executescript(damage)
    assert any(rule in one.rule for one in check(path)), check(path)


async def test_a_damaged_file_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        root, size = raw.execute(
            "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master WHERE name = 'transitions'"
        ).fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    found = check(path)
    assert found
    assert {one.rule for one in found} == {"SQLite finds the file whole"}


async def test_a_copy_of_a_store_in_use_is_whole_and_knows_that_it_is_one(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    async with SQLiteStore(path) as store:
        assert back_up(path, target) == target.stat().st_size
        await store.write(observed(CallKey("sess_1", "turn_2", "later"))).committed()
        original = store.info
    assert {one.name for one in tmp_path.glob("copy.db*")} == {"copy.db"}
    assert check(target) == []
    async with SQLiteStore(target) as copy:
        assert {call.key for call in await copy.calls()} == {KEY, OTHER}
        assert copy.info.store_id == original.store_id
        assert not copy.info.complete
    assert inspect(path).complete


async def test_a_copy_never_overwrites_and_leaves_nothing_half_made(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(StoreUnavailableError, match="never overwritten"):
        back_up(path, target)
    assert target.read_text() == "precious"
    with pytest.raises(StoreUnavailableError, match="no copy could be made"):
        back_up(path, tmp_path / "nowhere" / "copy.db")


async def test_a_store_whose_process_died_before_it_signed_is_empty_and_not_wrong(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DELETE FROM meta")
    assert check(path) == []
    with pytest.raises(StoreVersionError, match="nothing was ever stored"):
        inspect(path)
    async with SQLiteStore(path) as store:
        assert store.info.incarnation > 1


def test_an_empty_file_and_a_missing_one_are_no_stores(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    for look in (inspect, check):
        with pytest.raises(StoreVersionError, match="empty"):
            look(empty)
        with pytest.raises(StoreUnavailableError, match="no store"):
            look(tmp_path / "missing.db")
