"""Store files of every released schema: what is released never changes, and every release opens them all."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from answerback.model import CallState
from answerback.store.inspection import check
from answerback.store.migrations.migrate import load_steps
from answerback.store.sqlite import SQLiteStore

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.db"))
RELEASED = {
    1: "e4c73d5aadea",
    2: "769b442bb09d",
}
"""The first digits of the sha256 of every step; a line is added with a step and never changed."""
STATES = {
    "c1": CallState.ACKED,
    "c2": CallState.FINISHED,
    "c3": CallState.STARTED,
    "c4": CallState.WAITING_APPROVAL,
}


def schema_of(path: Path) -> list[tuple[str, str]]:
    """Return what a file's tables, indexes and triggers are."""
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()


def test_a_released_step_is_never_changed() -> None:
    steps = {step.version: hashlib.sha256(step.sql.encode()).hexdigest()[:12] for step in load_steps()}
    assert steps == RELEASED


def test_every_schema_has_its_golden_file() -> None:
    assert [int(path.stem) for path in GOLDEN] == [step.version for step in load_steps()]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_file_of_every_release_is_opened_without_a_manual_step_and_keeps_its_rows(
    golden: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(golden, tmp_path / "calls.db"))
    async with SQLiteStore(path) as store:
        assert {call.key.call_id: call.state for call in await store.calls()} == STATES
        assert store.info.complete
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (load_steps()[-1].version,)
    assert check(path) == []


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_an_old_file_ends_up_with_the_schema_of_a_new_one(golden: Path, tmp_path: Path) -> None:
    old, new = Path(shutil.copy(golden, tmp_path / "old.db")), tmp_path / "new.db"
    for path in (old, new):
        async with SQLiteStore(path):
            pass
    assert schema_of(old) == schema_of(new)
