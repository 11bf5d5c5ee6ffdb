"""Opening a store file: the place, the lock, the pragmas, the schema, and what the file knows about its own past.

All of it blocks and runs in the connection's thread.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from answerback.errors import StoreCorruptError, StoreLockedError, StoreUnavailableError, StoreVersionError
from answerback.store.base import StoreInfo
from answerback.store.connection import RawConnection
from answerback.store.filesystem import check_place
from answerback.store.lock import FileLock
from answerback.store.migrations.migrate import check_version, load_steps, migrate
from answerback.store.retention import RetainPayloads, keep_until_acked

Synchronous: TypeAlias = Literal["FULL", "NORMAL", "OFF"]

_LEVELS = {"OFF": 0, "NORMAL": 1, "FULL": 2}
_MAGIC = b"SQLite format 3\x00"
_CACHED_STATEMENTS = 256
"""Shapes of updates multiply with their columns; the default of 128 could be outgrown by a busy runtime."""
_CHECKPOINT_PAGES = 4000
"""16 MiB of log between checkpoints: each costs up to three fsyncs, which SQLite's 1,000 pages make four times as
frequent."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose for one store file."""

    path: Path
    """Absolute, so that a later change of the working directory does not move it."""
    synchronous: Synchronous = "FULL"
    busy_timeout: float = 5.0
    """Seconds SQLite itself waits for another process's lock before a commit counts as failed."""
    restored: bool = False
    retain_payloads: RetainPayloads = "until_pruned"


class Pragma(msgspec.Struct, frozen=True):
    """A setting and the value it must read back as."""

    name: str
    value: str
    reads: int | str


def pragmas(options: Options) -> list[Pragma]:
    """Return the settings of a read-write connection, in the order in which SQLite accepts them."""
    milliseconds = round(options.busy_timeout * 1000)
    return [
        Pragma("busy_timeout", str(milliseconds), milliseconds),
        # Before the log is switched on: in WAL mode it would be ignored without a word.
        Pragma("auto_vacuum", "INCREMENTAL", 2),
        Pragma("journal_mode", "WAL", "wal"),
        Pragma("synchronous", options.synchronous, _LEVELS[options.synchronous]),
        # macOS: fsync alone leaves data in the drive's cache. Without effect elsewhere.
        Pragma("fullfsync", "ON", 1),
        Pragma("checkpoint_fullfsync", "ON", 1),
        Pragma("foreign_keys", "ON", 1),
        # An I/O error on a mapped page is a SIGBUS instead of a result code.
        Pragma("mmap_size", "0", 0),
        Pragma("cell_size_check", "ON", 1),
        Pragma("trusted_schema", "OFF", 0),
        Pragma("wal_autocheckpoint", str(_CHECKPOINT_PAGES), _CHECKPOINT_PAGES),
    ]


def set_pragmas(connection: sqlite3.Connection, settings: list[Pragma]) -> None:
    """Apply settings, and read each back: SQLite ignores what it cannot do.

    Raises:
        StoreUnavailableError: one did not take effect.
    """
    for setting in settings:
        connection.execute(f"PRAGMA {setting.name} = {setting.value}").fetchall()
        row = connection.execute(f"PRAGMA {setting.name}").fetchone()
        # A build without mmap answers nothing, which is as good as 0.
        if row is not None and row[0] != setting.reads:
            raise StoreUnavailableError(f"SQLite did not accept {setting.name}={setting.value} here: use a local disk")


class StoreFile:
    """One store file, its lock, and what is known about it while it is open."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._path = options.path
        self._lock = FileLock(options.path)
        self.info: StoreInfo | None = None

    def __repr__(self) -> str:
        return f"<StoreFile {self._path.name} {'closed' if self.info is None else 'open'}>"

    def open(self) -> RawConnection:
        """Take the lock and open the file for writing, making or migrating it.

        Raises:
            StoreLockedError: another store, or another program, has it.
            StoreVersionError: it is newer than this release, or not a store.
            StoreCorruptError: it is damaged.
            StoreUnavailableError: it cannot be written here.
        """
        options = self._options
        # Links resolved, because two names of one file must find one lock.
        path = self._path = Path(os.path.realpath(options.path))
        check_place(path)
        self._lock = FileLock(path)
        self._lock.acquire()
        try:
            with self._explained(), _closing_on_error(_connect(path, "rwc")) as connection:
                connection.execute(f"PRAGMA busy_timeout = {round(options.busy_timeout * 1000)}").fetchall()
                steps = load_steps()
                check_version(connection, path=path, newest=steps[-1].version)
                _check_integrity(connection, path)
                set_pragmas(connection, pragmas(options))
                migrate(connection, path=path, steps=steps)
                self._prepare(connection)
                info = self._sign(connection)
                self._lock.record(info.incarnation)
                self.info = info
                return connection
        except BaseException:
            self.release()
            raise

    def reopen(self, number: int) -> tuple[RawConnection, bool]:
        """Open again after an I/O error, under the same lock; also tell whether batch `number` landed.

        The kernel may have dropped what a failed fsync did not write while it still shows it to readers. So the log is
        first copied into the file, with fsyncs of its own; only then is what can be read also what is stored.

        Raises:
            StoreError: the file cannot be opened, or the log not be copied.
        """
        path = self._path
        with self._explained(), _closing_on_error(_connect(path, "rw")) as connection:
            set_pragmas(connection, pragmas(self._options))
            _check_integrity(connection, path)
            _, logged, copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if logged != copied:
                raise StoreUnavailableError(f"a long read of {path} keeps its log from being checked: end it")
            batch: int = connection.execute("SELECT batch FROM meta").fetchone()[0]
            self._prepare(connection)
            return connection, batch == number

    def open_reader(self) -> RawConnection:
        """Open a second connection for reading: it sees commits at once and never waits for one."""
        return open_reader(self._path)

    def settle(self, connection: sqlite3.Connection) -> None:
        """Before an orderly close: an incomplete file counts as complete once an opening that observed calls ended well.

        A crash, or an opening that only decided something, leaves it incomplete for the next one.
        """
        connection.execute(
            "UPDATE meta SET complete = 1 WHERE complete = 0 AND EXISTS "
            "(SELECT 1 FROM transitions WHERE transitions.incarnation = meta.incarnation AND source = '')"
        )

    def release(self) -> None:
        """Give the lock back. The connections must be closed before."""
        self._lock.release()
        self.info = None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._options.retain_payloads == "until_acked":
            keep_until_acked(connection)

    def _sign(self, connection: sqlite3.Connection) -> StoreInfo:
        """Count this opening, and compare the file with the witness in the lock file."""
        connection.execute("BEGIN IMMEDIATE")
        row = connection.execute("SELECT store_id, incarnation, complete FROM meta").fetchone()
        store_id, known, complete = row or (uuid.uuid4().hex, 0, 1)
        witness = self._lock.witness
        # An unreadable witness of a file that exists may have said anything.
        behind = known > 0 if witness is None else witness > known
        complete = bool(complete) and not behind and not self._options.restored
        incarnation = max(known, witness or 0) + 1
        connection.execute(
            "INSERT INTO meta (id, store_id, incarnation, complete, pid, batch, created_at) VALUES (1, ?, ?, ?, ?, 0, ?) "
            "ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, complete = excluded.complete, "
            "pid = excluded.pid, batch = 0",
            (store_id, incarnation, int(complete), os.getpid(), time.time_ns() // 1000),
        )
        # The file before the witness: the other way round, a crash in between would look like a roll-back.
        connection.execute("COMMIT")
        return StoreInfo(store_id=store_id, incarnation=incarnation, complete=complete, path=str(self._path))

    @contextmanager
    def _explained(self) -> Generator[None]:
        with explained(self._path, was_store=bool(self._lock.witness)):
            yield


def open_reader(path: Path, *, older: bool = False) -> RawConnection:
    """Open a store file for reading only; with `older`, one of an earlier release as well.

    Raises:
        StoreUnavailableError: there is no such file, or it may not be read.
        StoreVersionError: it is not a store of this release.
        StoreCorruptError: it is damaged.
    """
    if not path.exists():
        raise StoreUnavailableError(f"there is no store at {path}: give the path with --db, or start a runtime first")
    newest = load_steps()[-1].version
    with explained(path, was_store=False), _closing_on_error(_connect(path, "ro")) as connection:
        connection.execute("PRAGMA busy_timeout = 1000").fetchall()
        version = check_version(connection, path=path, newest=newest)
        if version == 0:
            raise StoreVersionError(f"{path} is empty: nothing was ever stored in it")
        if version < newest and not older:
            raise StoreVersionError(
                f"{path} has schema {version}, this release reads {newest}: run `answerback store migrate`, or open it once for writing"
            )
        return connection


@contextmanager
def explained(path: Path, *, was_store: bool) -> Generator[None]:
    """Turn what SQLite raises while a file is opened or read into our errors, with what to do next.

    Args:
        path: the file, for the text.
        was_store: whether it is known to have been a store, so that unreadable means damaged and not foreign.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error, path, was_store=was_store) from error


def _explain(error: sqlite3.Error, path: Path, *, was_store: bool) -> Exception:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name: str = getattr(error, "sqlite_errorname", type(error).__name__)
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB if not was_store and not _has_magic(path):
            return StoreVersionError(f"{path} is not a database: give the path of a store, or a new one")
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StoreCorruptError(f"{path} is damaged ({name}): restore a backup and open it with restored=True")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            owner = "another SQLite connection, not answerback's"
            return StoreLockedError(f"{path} is locked by {owner}: close it", path=str(path), owner=owner)
        case sqlite3.SQLITE_FULL:
            return StoreUnavailableError(f"no room to open {path}: free some disk space")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreUnavailableError(f"{path} cannot be opened here ({name}): check permissions of file and folder")
        case _:
            return StoreUnavailableError(f"{path} cannot be used ({name}): check the disk")


def _has_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _connect(path: Path, mode: Literal["ro", "rw", "rwc"]) -> RawConnection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        # Worker threads take turns; the limiter and aiosqlite's queue see to it.
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
        factory=RawConnection,
    )


def _check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    row: tuple[Any, ...] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if row[0] != "ok":
        raise StoreCorruptError(f"{path} is damaged (quick_check): restore a backup and open it with restored=True")


@contextmanager
def _closing_on_error(connection: RawConnection) -> Generator[RawConnection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
