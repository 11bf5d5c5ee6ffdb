"""What is special about the store in a file: settings, refusals, the lock, roll-backs, trouble with the disk."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from blockbuster import blockbuster_ctx

from answerback.errors import (
    ConfigurationError,
    RuntimeStateError,
    StoreClosedError,
    StoreCorruptError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)
from answerback.model import CallKey, CallState
from answerback.store.base import UpdateCall
from answerback.store.conformance.builders import KEY, call_of, finished, observed, started
from answerback.store.filesystem import NETWORK_FILE_SYSTEMS, file_system
from answerback.store.lock import lock_path
from answerback.store.opening import Options, pragmas
from answerback.store.reader import SQLiteReader
from answerback.store.sqlite import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


async def settings_of(store: SQLiteStore, *names: str) -> dict[str, Any]:
    """Read settings on the very connection that commits."""
    assert store._journal is not None
    connection = store._journal._connection
    assert connection is not None
    return {name: (await connection.fetchall(f"PRAGMA {name}"))[0][0] for name in names}


async def test_a_commit_waits_for_the_disk_unless_asked_not_to(path: Path) -> None:
    async with SQLiteStore(path) as store:
        assert await settings_of(
            store,
            "synchronous",
            "journal_mode",
            "auto_vacuum",
            "busy_timeout",
            "foreign_keys",
            "mmap_size",
            "fullfsync",
            "checkpoint_fullfsync",
            "trusted_schema",
            "user_version",
        ) == {
            "synchronous": 2,
            "journal_mode": "wal",
            "auto_vacuum": 2,
            "busy_timeout": 5000,
            "foreign_keys": 1,
            "mmap_size": 0,
            "fullfsync": 1,
            "checkpoint_fullfsync": 1,
            "trusted_schema": 0,
            "user_version": 2,
        }
    for name, value in (("NORMAL", 1), ("OFF", 0)):
        async with SQLiteStore(path, synchronous=name, busy_timeout=0.25) as store:  # type: ignore[arg-type] # the loop variable is a str to mypy
            assert await settings_of(store, "synchronous", "busy_timeout") == {
                "synchronous": value,
                "busy_timeout": 250,
            }


async def test_a_setting_that_does_not_take_effect_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_lie(options: Options) -> list[Any]:
        return [type(setting)(setting.name, setting.value, "delete") for setting in pragmas(options)]

    monkeypatch.setattr("answerback.store.opening.pragmas", with_a_lie)
    with pytest.raises(StoreUnavailableError, match="SQLite did not accept"):
        await SQLiteStore(path).open()


def test_options_that_make_no_sense_are_refused_where_they_are_given() -> None:
    with pytest.raises(ConfigurationError, match="MemoryStore"):
        SQLiteStore(":memory:")
    with pytest.raises(ConfigurationError, match="FULL"):
        SQLiteStore("calls.db", synchronous="full")  # type: ignore[arg-type] # the point of the test


# Places and files that cannot be used ------------------------------------------------------------------------------


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="not a directory: make it"):
        await SQLiteStore(tmp_path / "nowhere" / "calls.db").open()


async def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="is a directory"):
        await SQLiteStore(tmp_path).open()


async def test_a_file_or_folder_without_write_permission_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteStore(path):
        pass
    # Not by chmod: the tests may run as root, who may write everywhere.
    access = os.access
    for refused in (path, path.parent):

        def refuse(place: Path, mode: int, refused: Path = refused) -> bool:
            return place != refused and access(place, mode)

        monkeypatch.setattr(os, "access", refuse)
        with pytest.raises(StoreUnavailableError, match="cannot be written by this user"):
            await SQLiteStore(path).open()


async def test_a_text_file_is_not_a_store(path: Path) -> None:
    path.write_text("notes\n" * 200)
    with pytest.raises(StoreVersionError, match="not a database"):
        await SQLiteStore(path).open()
    assert path.read_text() == "notes\n" * 200


async def test_another_programs_database_is_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE bookmarks (url TEXT)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreVersionError, match="another program"):
        await SQLiteStore(path).open()
    assert path.read_bytes() == before


async def test_a_file_of_a_newer_release_is_left_as_it_is(path: Path) -> None:
    async with SQLiteStore(path):
        pass
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StoreVersionError, match="schema 99, this release knows up to 2"):
        await SQLiteStore(path).open()


@pytest.mark.parametrize("place", [0, 4096 + 8, 3 * 4096])
async def test_a_damaged_file_is_recognised(path: Path, place: int) -> None:
    async with SQLiteStore(path) as store:
        await store.write(*(observed(CallKey("s", "t", f"c{n}")) for n in range(200))).committed()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\xa5" * 2048)
    with pytest.raises(StoreCorruptError, match="restore a backup"):
        await SQLiteStore(path).open()


async def test_a_store_that_could_not_be_opened_can_be_tried_again(path: Path) -> None:
    path.write_text("notes\n" * 200)
    store = SQLiteStore(path)
    with pytest.raises(StoreVersionError):
        await store.open()
    path.unlink()
    async with store:
        await store.write(observed()).committed()


def test_network_file_systems_are_told_by_the_longest_mount_point() -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\n"
        "server:/data /data nfs4 rw 0 0\n"
        "/dev/vdb /data/ann/fast\\040disk xfs rw 0 0\n"
        "server:/srv /srv ext4 rw 0 0\n"
        "server:/srv /srv cifs rw 0 0\n"
        "broken\n"
    )
    seen = {
        "/var/lib": "ext4",
        "/data/ann": "nfs4",
        "/data/ann/fast disk/stores": "xfs",
        "/database": "ext4",
        "/srv": "cifs",
    }
    assert {folder: file_system(Path(folder), mounts=mounts) for folder in seen} == seen
    assert {"nfs4", "cifs"} <= NETWORK_FILE_SYSTEMS
    assert not {"ext4", "xfs", "tmpfs", "overlay", "apfs"} & NETWORK_FILE_SYSTEMS
    assert file_system(Path("/var"), mounts="") is None


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("answerback.store.filesystem._read_mounts", lambda: "server:/ / nfs4 rw 0 0\n")
    with pytest.raises(StoreUnavailableError, match="local disk"):
        await SQLiteStore(path).open()


# The witness of a roll-back ----------------------------------------------------------------------------------------


async def open_and_close(path: Path, **options: Any) -> tuple[int, bool]:
    async with SQLiteStore(path, **options) as store:
        return store.info.incarnation, store.info.complete


async def test_a_file_put_back_to_an_older_state_is_incomplete(path: Path) -> None:
    assert await open_and_close(path) == (1, True)
    backup = path.with_name("backup.db")
    shutil.copy(path, backup)
    assert await open_and_close(path) == (2, True)
    shutil.copy(backup, path)
    assert await open_and_close(path) == (3, False)


async def test_a_deleted_file_beside_a_remembered_incarnation_is_incomplete(path: Path) -> None:
    await open_and_close(path)
    path.unlink()
    assert await open_and_close(path) == (2, False)


async def test_a_restored_file_is_incomplete_when_it_is_said_to_be(path: Path) -> None:
    await open_and_close(path)
    assert await open_and_close(path, restored=True) == (2, False)


async def test_an_incomplete_file_stays_so_until_an_opening_that_observed_calls_was_closed(path: Path) -> None:
    await open_and_close(path, restored=True)
    assert await open_and_close(path) == (2, False)
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
        assert not store.info.complete
    assert await open_and_close(path) == (4, True)


async def test_an_unreadable_witness_makes_an_old_file_incomplete_and_a_new_one_not(path: Path) -> None:
    lock_path(path).write_text("garbage")
    assert await open_and_close(path) == (1, True)
    lock_path(path).write_text("garbage")
    assert await open_and_close(path) == (2, False)


# Life --------------------------------------------------------------------------------------------------------------


def test_one_process_may_use_a_store_in_one_event_loop_after_another(path: Path) -> None:
    store = SQLiteStore(path)

    async def answer(number: int) -> int:
        async with store:
            await store.write(observed(CallKey("s", "t", f"c{number}"))).committed()
            return len(await store.open_calls("s"))

    assert [asyncio.run(answer(number)) for number in range(2)] == [1, 2]
    assert anyio.run(answer, 2, backend="trio") == 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_event_loop_is_never_blocked(path: Path) -> None:
    async with SQLiteStore(path), SQLiteReader(path):
        # Once before, so that nothing has to be imported below.
        pass
    with blockbuster_ctx():
        async with SQLiteStore(path) as store:
            await store.write(observed(), started()).committed()
            assert len(await store.calls()) == 1
            async with SQLiteReader(path) as reader:
                assert len(await reader.open_calls(KEY.session_id)) == 1


async def test_the_repr_tells_the_state(path: Path) -> None:
    store = SQLiteStore(path)
    assert repr(store) == "<SQLiteStore calls.db not opened>"
    async with store:
        await store.write(observed()).committed()
        assert repr(store) == "<SQLiteStore calls.db <Writer open, 0 queued, 1 commits>>"
    assert repr(store) == "<SQLiteStore calls.db <Writer closed, 0 queued, 1 commits>>"
    with pytest.raises(RuntimeStateError):
        _ = store.info


async def test_a_cancelled_opening_leaves_nothing_open(path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await SQLiteStore(path).open()
    with anyio.fail_after(5):
        while True:
            try:
                async with SQLiteStore(path) as store:
                    await store.write(observed()).committed()
            except StoreLockedError:
                # The cancelled one is still being closed by its own task.
                await anyio.lowlevel.checkpoint()
                continue
            return


async def test_values_sqlite_cannot_hold_cost_their_own_transaction_only(path: Path) -> None:
    async with SQLiteStore(path) as store:
        good = store.write(observed())
        bad = [
            store.write(observed(CallKey("s", "t", "lone surrogate \ud800"))),
            store.write(observed(CallKey("s", "t", "c1"), observed_at=2**70)),
            store.write(observed(CallKey("s", "t", "c2"), attempt="one")),
            store.write(observed(CallKey("s", "t", "c3"), name=object())),
        ]
        last = store.write(started())
        with anyio.fail_after(5):
            for receipt in bad:
                with pytest.raises(Exception, match="the store refused this write") as caught:
                    await receipt.committed()
                assert type(caught.value).__name__ == "StoreError"
                assert "surrogate" not in str(caught.value)
            assert [list(await receipt.committed()) for receipt in (good, last)] == [[1], [1]]
        assert [record.key for record in await store.calls()] == [KEY]


# The file keeps the promises by itself -----------------------------------------------------------------------------


async def test_the_file_itself_refuses_a_changed_outcome_and_a_changed_substitute(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(observed(), started(), finished()).committed()
    raw = sqlite3.connect(path)
    raw.execute("INSERT INTO substitutes (call, reason, at, element) VALUES (1, 'r', 1, x'00')")
    for sql in ("UPDATE calls SET outcome = x'00'", "UPDATE calls SET outcome = NULL", "UPDATE substitutes SET at = 2"):
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            raw.execute(sql)
    raw.close()


async def test_the_queries_of_a_busy_session_use_their_indexes(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
        assert store._journal is not None
        plans: dict[str, str] = {}
        fetch = store._fetchall

        async def explain(sql: str, row: Any = ()) -> list[Any]:
            plans[sql] = "; ".join(step[-1] for step in await fetch(f"EXPLAIN QUERY PLAN {sql}", row))
            return []

        store._fetchall = explain  # type: ignore[method-assign] # looks at the SQL of the real methods
        await store.open_calls("s")
        await store.calls_by_key([KEY, CallKey("a", "b", "c")])
        await store.open_inputs("s")
        await store.calls(states=(CallState.STARTED,), session_id="s")
        first_index = [re.findall(r"INDEX (\w+) ", plan)[0] for plan in plans.values()]
        assert first_index == ["calls_open", "sqlite_autoindex_calls_1", "inputs_open", "calls_open"]
        assert not any("SCAN calls" in plan or "SCAN inputs" in plan for plan in plans.values())


async def test_a_closed_call_that_is_pending_again_is_open_again(path: Path) -> None:
    closed, opened = CallState.ACKED, CallState.FINISHED
    async with SQLiteStore(path) as store:
        await store.write(observed(), started(), finished()).committed()
        for source, target, open_calls in ((opened, closed, 0), (closed, opened, 1), (opened, closed, 0)):
            move = UpdateCall(key=KEY, sources=(source, CallState.STARTED), target=target, at=5)
            assert list(await store.write(move).committed()) == [1]
            assert len(await store.open_calls(KEY.session_id)) == open_calls


# Trouble -----------------------------------------------------------------------------------------------------------


async def wait_until_degraded(store: SQLiteStore, word: str) -> None:
    with anyio.fail_after(10):
        while word not in (store.health.degraded or ""):
            await anyio.to_thread.run_sync(os.sched_yield)


async def test_a_full_disk_holds_a_result_back_and_loses_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    big = b'"' + b"x" * 200_000 + b'"'
    async with SQLiteStore(path) as store:
        await store.write(observed(), started()).committed()
        await store.limit_growth(0)
        receipt = store.write(finished(outcome=big))
        await wait_until_degraded(store, "SQLITE_FULL")
        assert not receipt.done
        # Reads go on, and see what was committed before.
        assert (await call_of(store)).state is CallState.STARTED
        await store.limit_growth(None)
        with anyio.fail_after(5):
            assert list(await receipt.committed()) == [1]
        assert store.health.degraded is None
        assert (await call_of(store)).outcome == big
    assert "degraded" in caplog.text
    assert "xxx" not in caplog.text


async def test_a_lock_of_another_program_degrades_the_store_and_fails_no_write(path: Path) -> None:
    keys = [CallKey("s", "t", f"c{n}") for n in range(20)]
    async with SQLiteStore(path, busy_timeout=0.05) as store:
        other = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        await anyio.to_thread.run_sync(other.execute, "BEGIN IMMEDIATE")
        receipts = [store.write(observed(key), started(key)) for key in keys]
        await wait_until_degraded(store, "SQLITE_BUSY")
        assert not any(receipt.done for receipt in receipts)
        assert await store.calls() == []
        await anyio.to_thread.run_sync(other.execute, "ROLLBACK")
        with anyio.fail_after(5):
            for receipt in receipts:
                assert list(await receipt.committed()) == [1, 1]
        assert store.health.degraded is None
        await anyio.to_thread.run_sync(other.close)


async def test_a_file_locked_by_another_program_cannot_be_opened(path: Path) -> None:
    async with SQLiteStore(path):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreLockedError, match="not answerback's"):
        await SQLiteStore(path, busy_timeout=0.05).open()
    other.close()
    assert await open_and_close(path) == (2, True)


async def test_closing_after_a_read_was_cancelled_works(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.calls()
        assert len(await store.calls()) == 1
    with pytest.raises(StoreClosedError):
        await store.calls()
