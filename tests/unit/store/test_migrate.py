"""The ladder of versions: whole steps, a copy before the first, never downwards."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from answerback.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError
from answerback.store.conformance.builders import KEY, observed, started
from answerback.store.migrations.migrate import APPLICATION_ID, Step, load_steps, migrate
from answerback.store.sqlite import SQLiteStore

NEXT = load_steps()[-1].version + 1
MORE = [
    *load_steps(),
    Step(NEXT, "ALTER TABLE calls ADD COLUMN colour TEXT; UPDATE calls SET colour = 'red';"),
    Step(NEXT + 1, "CREATE INDEX calls_colour ON calls (colour);"),
]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path) as store:
        await store.write(observed(), started()).committed()
    return path


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def version_of(path: Path) -> int:
    connection = connect(path)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return version


def test_steps_are_numbered_without_gaps() -> None:
    steps = load_steps()
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))


async def test_a_file_with_data_climbs_and_keeps_it(path: Path) -> None:
    connection = connect(path)
    assert migrate(connection, path=path, steps=MORE) == NEXT - 1
    assert connection.execute("SELECT call_id, state, colour FROM calls").fetchall() == [
        (KEY.call_id, "started", "red")
    ]
    connection.close()
    assert version_of(path) == NEXT + 1


async def test_a_copy_of_the_old_version_is_made_first_and_not_replaced(path: Path) -> None:
    backup = path.with_name(f"calls.db.v{NEXT - 1}.bak")
    connection = connect(path)
    migrate(connection, path=path, steps=MORE)
    connection.close()
    assert version_of(backup) == NEXT - 1
    copy = connect(backup)
    assert copy.execute("SELECT count(*) FROM calls").fetchone() == (1,)
    copy.close()
    before = backup.read_bytes()
    connection = connect(path)
    connection.execute(f"PRAGMA user_version = {NEXT - 1}")
    with pytest.raises(StoreCorruptError):
        # The column is there already, so the step fails; the copy stays the good one.
        migrate(connection, path=path, steps=MORE)
    connection.close()
    assert backup.read_bytes() == before


async def test_a_new_file_and_a_current_one_need_no_copy(path: Path) -> None:
    async with SQLiteStore(path):
        pass
    assert {file.name for file in path.parent.iterdir()} == {"calls.db", "calls.db.lock"}


async def test_a_copy_that_cannot_be_made_stops_the_migration(path: Path) -> None:
    path.with_name(f"calls.db.v{NEXT - 1}.bak.part").mkdir()
    connection = connect(path)
    with pytest.raises(StoreUnavailableError, match="make room"):
        migrate(connection, path=path, steps=MORE)
    connection.close()
    assert version_of(path) == NEXT - 1


async def test_a_step_that_fails_leaves_the_version_before_it(path: Path) -> None:
    connection = connect(path)
    broken = [*MORE[:-1], Step(NEXT + 1, "DELETE FROM calls; SELECT nonsense FROM nowhere;")]
    with pytest.raises(StoreCorruptError, match="unchanged"):
        migrate(connection, path=path, steps=broken)
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM calls").fetchone() == (1,)
    connection.close()
    assert version_of(path) == NEXT


async def test_a_newer_file_is_refused(path: Path) -> None:
    connection = connect(path)
    migrate(connection, path=path, steps=MORE)
    with pytest.raises(StoreVersionError, match="use the release that wrote it"):
        migrate(connection, path=path, steps=load_steps())
    connection.close()


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from answerback.store.migrations.migrate import Step, load_steps, migrate

path = Path(sys.argv[1])
connection = sqlite3.connect(path, isolation_level=None)
connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
steps = load_steps()
sql = "ALTER TABLE calls ADD COLUMN colour TEXT; UPDATE calls SET name = 'lost'; SELECT die();"
migrate(connection, path=path, steps=[*steps, Step(steps[-1].version + 1, sql)])
"""


async def test_a_kill_in_the_middle_of_a_step_leaves_the_old_version_whole(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert version_of(path) == NEXT - 1
    async with SQLiteStore(path) as store:
        assert [record.name for record in await store.calls()] == ["refund"]


async def test_a_kill_before_the_first_step_is_done_leaves_a_file_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    first = "connection.execute('PRAGMA auto_vacuum = INCREMENTAL'); migrate(connection, path=path, steps=[Step(1, "
    code = KILLED.split("steps = load_steps()")[0] + first + "load_steps()[0].sql + 'SELECT die();')])"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert version_of(path) == 0
    async with SQLiteStore(path) as store:
        await store.write(observed()).committed()
    raw = connect(path)
    assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    raw.close()
