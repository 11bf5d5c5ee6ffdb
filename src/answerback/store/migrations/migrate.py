"""The ladder of schema versions: `PRAGMA user_version`, one transaction a step, never downwards."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from answerback.errors import StoreCorruptError, StoreUnavailableError, StoreVersionError

APPLICATION_ID = 0x416E7362
"""Marks our files ("Ansb"); SQLite keeps it in the file's header."""


class Step(msgspec.Struct, frozen=True):
    """One step: the version it leads to and its SQL."""

    version: int
    sql: str


def load_steps() -> list[Step]:
    """Read the steps of this release, lowest first: files named by their version, like `0001_initial.sql`."""
    files = [file for file in resources.files("answerback.store.migrations").iterdir() if file.name.endswith(".sql")]
    steps = [Step(int(file.name.split("_")[0]), file.read_text(encoding="utf-8")) for file in files]
    return sorted(steps, key=lambda step: step.version)


def check_version(connection: sqlite3.Connection, *, path: Path, newest: int) -> int:
    """Return the schema version of a file, 0 for an empty one.

    Raises:
        StoreVersionError: it is another program's database, or a newer release made it.
    """
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreVersionError(f"{path} is a database of another program: give the path of a store, or a new one")
    if version > newest:
        raise StoreVersionError(
            f"{path} has schema {version}, this release knows up to {newest}: use the release that wrote it, or newer"
        )
    return version


def migrate(connection: sqlite3.Connection, *, path: Path, steps: Sequence[Step]) -> int:
    """Bring a file up to the newest step; return the version it had.

    Each step is one transaction together with its version number, so a crash leaves a whole version. A file with data
    is first copied to `<db>.v<version>.bak`; an older copy of that name is kept as it is.

    Raises:
        StoreVersionError: the file is newer than the steps, or not ours.
        StoreCorruptError: a step failed; the version before it is intact.
    """
    newest = steps[-1].version
    version = check_version(connection, path=path, newest=newest)
    if 0 < version < newest:
        _back_up(connection, path.with_name(f"{path.name}.v{version}.bak"))
    for step in steps:
        if step.version > version:
            _climb(connection, step, path=path)
    return version


def _climb(connection: sqlite3.Connection, step: Step, *, path: Path) -> None:
    marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {step.version};"
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{step.sql}\n{marks}\nCOMMIT;")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if error.sqlite_errorcode in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY}:
            raise
        raise StoreCorruptError(
            f"{path} could not be brought to schema {step.version} ({error.sqlite_errorname}); it is unchanged: "
            "check it with the release that wrote it"
        ) from error


def _back_up(connection: sqlite3.Connection, target: Path) -> None:
    """Copy the whole database, on stable storage, before anything in it is changed."""
    if target.exists():
        return
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(part),))
        for place in (part, part.parent):
            _sync(place)
        part.rename(target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(
            f"no copy of the store could be made at {target} ({type(error).__name__}): make room, then open it again"
        ) from error


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
