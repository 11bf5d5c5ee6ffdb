"""Looking after a store file beside the process that owns it: facts, checks, a copy. All of it blocks."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from answerback.errors import StoreUnavailableError, StoreVersionError
from answerback.store import retention
from answerback.store.checks import Problem, problems
from answerback.store.lock import lock_owner
from answerback.store.migrations.migrate import load_steps
from answerback.store.opening import explained, open_reader


class OpenCall(msgspec.Struct, frozen=True):
    """The call that has been open longest."""

    id: str
    name: str
    state: str
    observed_at: int


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a store file from outside."""

    path: str
    schema: int
    newest_schema: int
    """What this release would bring it to when it is opened for writing."""
    store_id: str
    incarnation: int
    complete: bool
    created_at: int
    size_bytes: int
    log_bytes: int
    """Commits that are not copied into the file yet."""
    free_bytes: int
    """What the file holds for reuse; a pruning gives it back."""
    prunable_bytes: int
    """Payloads a pruning with its usual times would forget now."""
    sessions: dict[str, int]
    calls: dict[str, int]
    """Rows by state."""
    inputs: dict[str, int]
    oldest_open: OpenCall | None
    owner: dict[str, Any] | None
    """Who has it open for writing: host, pid, since; None when nobody has."""

    @property
    def reclaimable_bytes(self) -> int:
        """What a pruning would give back, about."""
        return self.free_bytes + self.prunable_bytes


def inspect(path: Path, *, now: int | None = None) -> StoreFacts:
    """Read the facts of a store of this release or an older one.

    Raises:
        StoreError: there is none, or it cannot be read.
    """
    moment = time.time_ns() // 1000 if now is None else now
    owner = lock_owner(path)
    with closing(open_reader(path, older=True)) as connection, explained(path, was_store=True):
        connection.execute("BEGIN")
        signature = connection.execute("SELECT store_id, incarnation, complete, created_at FROM meta").fetchone()
        if signature is None:
            raise StoreVersionError(f"{path} is empty: nothing was ever stored in it")
        store_id, incarnation, complete, created_at = signature
        return StoreFacts(
            path=str(path.absolute()),
            schema=_pragma(connection, "user_version"),
            newest_schema=load_steps()[-1].version,
            store_id=store_id,
            incarnation=incarnation,
            complete=bool(complete),
            created_at=created_at,
            size_bytes=_size(path),
            log_bytes=_size(path.with_name(path.name + "-wal")),
            free_bytes=_pragma(connection, "freelist_count") * _pragma(connection, "page_size"),
            prunable_bytes=retention.prunable_bytes(connection, before=moment - int(retention.PAYLOADS_AFTER * 1e6)),
            sessions=_counts(connection, "sessions"),
            calls=_counts(connection, "calls"),
            inputs=_counts(connection, "inputs"),
            oldest_open=_oldest_open(connection),
            owner=owner,
        )


def check(path: Path) -> list[Problem]:
    """Return what is wrong with a store file; an empty list is the good answer.

    Raises:
        StoreError: there is none, or it cannot be opened at all.
    """
    with closing(open_reader(path, older=True)) as connection, explained(path, was_store=True):
        connection.execute("BEGIN")
        return problems(connection)


def back_up(path: Path, target: Path) -> int:
    """Copy a store, also one that is in use, to a new file; return the bytes of the copy.

    The copy is one moment of the store. It is marked as what it is: opened as a store, it does not take "no row" for
    "never started", because the original went on.

    Raises:
        StoreUnavailableError: the target exists, or cannot be written.
        StoreError: there is no store, or it cannot be read.
    """
    if target.exists():
        raise StoreUnavailableError(f"{target} is there already: give a new name, a copy is never overwritten")
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        with closing(open_reader(path, older=True)) as source:
            _copy(source, part)
        _sync(part)
        # A link and not a rename: whoever made the target meanwhile keeps it.
        os.link(part, target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "sqlite_errorname", type(error).__name__)
        raise StoreUnavailableError(f"no copy could be made at {target} ({reason})") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return target.stat().st_size


def _copy(source: sqlite3.Connection, part: Path) -> None:
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        source.backup(copy)
        # Without a log of its own, so that the one file is all there is to keep.
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        copy.execute("UPDATE meta SET complete = 0")


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _counts(connection: sqlite3.Connection, table: str) -> dict[str, int]:
    sql = f"SELECT state, count(*) FROM {table} GROUP BY state ORDER BY state"  # noqa: S608 - our own names
    return dict(connection.execute(sql).fetchall())


def _oldest_open(connection: sqlite3.Connection) -> OpenCall | None:
    row = connection.execute(
        "SELECT digest, name, state, observed_at FROM calls WHERE open = 1 ORDER BY observed_at, id LIMIT 1"
    ).fetchone()
    return None if row is None else OpenCall(*row)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
