"""Reading a file beside the store that owns it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from answerback.errors import RuntimeStateError, StoreCorruptError, StoreUnavailableError, StoreVersionError
from answerback.store.conformance.builders import KEY, observed, started
from answerback.store.reader import SQLiteReader
from answerback.store.sqlite import SQLiteStore


async def test_a_reader_sees_each_commit_of_the_store_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        async with SQLiteReader(path) as reader:
            assert await reader.calls() == []
            await store.write(observed()).committed()
            assert await reader.calls() == await store.calls()
            await store.write(started()).committed()
            assert [step.target for step in await reader.transitions(KEY)] == ["requested", "started"]
            assert repr(reader) == "<SQLiteReader calls.db open>"
        await store.write(observed()).committed()


async def test_a_reader_reads_a_store_that_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
    async with SQLiteReader(path) as reader:
        assert len(await reader.calls()) == 1


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
        async with SQLiteReader(path) as reader:
            with pytest.raises(StoreUnavailableError, match="READONLY"):
                await reader._fetchall("DELETE FROM calls")


async def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with pytest.raises(StoreUnavailableError, match="there is no store at"):
        await SQLiteReader(path).open()
    assert not path.exists()


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    text, foreign, old = (tmp_path / name for name in ("text.db", "foreign.db", "old.db"))
    text.write_text("notes\n" * 200)
    sqlite3.connect(foreign).execute("CREATE TABLE bookmarks (url TEXT)").connection.close()
    sqlite3.connect(old).execute("PRAGMA user_version = 0").connection.close()
    for path in (text, foreign, old):
        with pytest.raises(StoreVersionError):
            await SQLiteReader(path).open()


async def test_damage_met_while_reading_is_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        await store.write(observed(arguments=b"x" * 50_000)).committed()
    size = path.stat().st_size
    async with SQLiteReader(path) as reader:
        with path.open("r+b") as file:
            file.seek(8192)
            file.write(b"\xa5" * (size - 8192))
        with pytest.raises(StoreCorruptError):
            await reader.calls()


async def test_a_reader_is_used_between_open_and_close_only(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path):
        reader = SQLiteReader(path)
        with pytest.raises(RuntimeStateError):
            await reader.calls()
        async with reader:
            with pytest.raises(RuntimeStateError):
                await reader.open()
        await reader.aclose()
        with pytest.raises(RuntimeStateError):
            await reader.calls()
