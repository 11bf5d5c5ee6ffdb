"""The SQLite store: one file, one writer, reads beside it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from answerback.errors import ConfigurationError, RuntimeStateError, StoreClosedError
from answerback.store import batch
from answerback.store.base import Receipt, StoreHealth, StoreInfo, Write
from answerback.store.batch import Applied
from answerback.store.connection import Connection, connect
from answerback.store.opening import Options, StoreFile, Synchronous, explained
from answerback.store.reads import JournalReads
from answerback.store.retention import PAYLOADS_AFTER, ROWS_AFTER, Pruned, RetainPayloads, prune, wipe_log
from answerback.store.rows import Row
from answerback.store.statements import Compiler, Statement
from answerback.store.writer import Writer

T = TypeVar("T")


class SQLiteStore(JournalReads):
    """A journal in one SQLite file, for asyncio and trio. Use as an async context manager.

    Args:
        path: the file; made when missing, in a directory that exists.
        synchronous: how much a commit waits for. Only FULL keeps what a receipt promises across a power loss; the
            others must be asked for by name.
        busy_timeout: seconds SQLite waits for another process's lock before the store calls itself degraded.
        retain_payloads: "until_acked" forgets the arguments and the result of a call in the commit that marks it as
            taken by the server; "until_pruned" keeps them until `prune`.
        restored: say so when the file was restored from a backup: calls without a row may then have been started.

    It may be closed and opened again, also in another event loop. `write` must be called in the event loop's thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "answerback.db",
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout: float = 5.0,
        restored: bool = False,
        retain_payloads: RetainPayloads = "until_pruned",
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise ConfigurationError("a SQLiteStore needs a file: use MemoryStore() for one that is not kept")
        if synchronous not in ("FULL", "NORMAL", "OFF"):
            raise ConfigurationError(f"synchronous={synchronous!r}: it is FULL, NORMAL or OFF")
        if retain_payloads not in ("until_pruned", "until_acked"):
            raise ConfigurationError(f"retain_payloads={retain_payloads!r}: it is until_pruned or until_acked")
        self._path = Path(path).absolute()
        self._options = Options(
            path=self._path,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            restored=restored,
            retain_payloads=retain_payloads,
        )
        self._compiler = Compiler()
        self._journal: _SQLiteJournal | None = None
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path.name} {'not opened' if self._writer is None else repr(self._writer)}>"

    @property
    def path(self) -> Path:
        """The file, also before the store is open."""
        return self._path

    @property
    def info(self) -> StoreInfo:
        """Identity and incarnation.

        Raises:
            RuntimeStateError: the store is not open.
        """
        info = None if self._journal is None else self._journal.file.info
        if info is None:
            raise RuntimeStateError("the store is not open: async with SQLiteStore(path) as store")
        return info

    @property
    def health(self) -> StoreHealth:
        """Whether the store is degraded, and how much it did."""
        return StoreHealth() if self._writer is None else self._writer.health

    async def open(self) -> None:
        """Open for writing, taking the lock.

        Raises:
            RuntimeStateError: it is open already.
            StoreLockedError: another process, or another store in this one, owns the file.
            StoreVersionError: the file is newer than this release, or not a store.
            StoreCorruptError: the file is damaged.
            StoreUnavailableError: the file cannot be written here, or lies on a network file system.
        """
        if self._writer is not None and not self._writer.finished:
            raise RuntimeStateError("this store is open already")
        forgets = self._options.retain_payloads == "until_acked"
        self._journal = _SQLiteJournal(StoreFile(self._options), self._path, forgets=forgets)
        self._writer = Writer(self._journal)
        await self._writer.start()

    async def aclose(self) -> None:
        """Commit what is queued, close and release the lock. Never cancelled half-way."""
        if self._writer is not None:
            await self._writer.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def write(self, *statements: Write, lazy: bool = False) -> Receipt:
        """Queue one transaction, in the order of the calls to this method, and return at once.

        Raises:
            RuntimeStateError: the store was not opened.
            StoreClosedError: it was closed.
            ValueError: a statement names columns it may not change.
        """
        return self._open_writer().submit([self._compiler.compile(write) for write in statements], lazy=lazy)

    async def flush(self) -> None:
        """Return when everything queued before the call is on stable storage, lazy writes included.

        Raises:
            StoreError: it will not be.
        """
        await self._open_writer().flush()

    async def prune(
        self, *, payloads_after: float = PAYLOADS_AFTER, rows_after: float = ROWS_AFTER, now: int | None = None
    ) -> Pruned:
        """Give up what is old, and let the file shrink. Calls go on meanwhile; open ones are never touched.

        A session is at rest when no turn, call or input of it is open. Once its rows are gone, a call of it that the
        server lists again counts as new, and so does an input sent again under its key.

        Args:
            payloads_after: seconds of rest after which arguments, results and messages are forgotten.
            rows_after: seconds of rest after which the rows are deleted; not less than `payloads_after`.
            now: the time, microseconds since the epoch.

        Raises:
            ConfigurationError: the times do not fit each other.
            StoreError: the store was closed meanwhile, or cannot be written.
        """
        if not 0 <= payloads_after <= rows_after:
            raise ConfigurationError("payloads_after is 0 seconds or more, and not more than rows_after")
        writer = self._open_writer()
        assert self._journal is not None, "a writer comes with its journal"
        journal, moment = self._journal, time.time_ns() // 1000 if now is None else now

        async def run(job: Callable[[sqlite3.Connection], T]) -> T:
            with explained(self._path, was_store=True):
                return await writer.between(lambda: journal.run(job))

        return await prune(
            run, payloads_before=moment - int(payloads_after * 1e6), rows_before=moment - int(rows_after * 1e6)
        )

    async def limit_growth(self, pages: int | None) -> None:
        """For tests: let the file grow by `pages` pages only, so that writes meet a full disk; None lifts the limit."""
        journal = self._journal
        if journal is None:
            raise RuntimeStateError("the store is not open")

        def limit(connection: sqlite3.Connection) -> None:
            most = 2**31 if pages is None else pages + connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {most}").fetchall()

        await self._open_writer().between(lambda: journal.run(limit))

    async def _fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[Row]:
        self._open_writer()
        assert self._journal is not None, "a writer comes with its journal"
        return await self._journal.fetchall(sql, row)

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise RuntimeStateError("the store is not open: async with SQLiteStore(path) as store")
        if self._writer.closed:
            raise StoreClosedError("the store is closed: open it again")
        return self._writer


class _SQLiteJournal:
    """The connections of one opening: one for the writer, one for everybody's reads.

    Reads have their own because a commit may take seconds (a slow disk, another process's lock) in which a call's row
    must still be readable. It is read-only, so it can neither write nor checkpoint: the file keeps one writer.
    """

    def __init__(self, file: StoreFile, path: Path, *, forgets: bool = False) -> None:
        self.file = file
        self._forgets = forgets
        self._path = path
        self._connection: Connection | None = None
        self._reader: Connection | None = None
        self._reading = anyio.Lock(fast_acquire=True)
        self._interrupted: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<_SQLiteJournal {self.file!r}>"

    async def open(self, interrupted: Callable[[], None]) -> None:
        """Take the lock and open both connections."""
        self._interrupted = interrupted
        try:
            self._connection = await connect(self.file.open, interrupted=interrupted)
            self._reader = await connect(self.file.open_reader)
        except BaseException:
            await self.close()
            raise

    async def apply(self, transactions: Sequence[Sequence[Statement]], *, number: int) -> Applied:
        """Commit these transactions in one trip to the thread."""
        assert self._connection is not None, "the writer opens before it applies"
        applied = await self._connection.run(partial(batch.apply, transactions=transactions, number=number))
        if self._forgets and applied.trouble is None:
            await self._connection.run(wipe_log)
        return applied

    async def recover(self, number: int) -> bool:
        """Open both connections again, under the same lock; return whether batch `number` landed."""
        async with self._reading:
            await self._close_connections()
            landed: list[bool] = []

            def reopen() -> Any:
                raw, found = self.file.reopen(number)
                landed.append(found)
                return raw

            self._connection = await connect(reopen, interrupted=self._interrupted)
            self._reader = await connect(self.file.open_reader)
            return landed[0]

    async def close(self) -> None:
        """Close both connections, then give the lock back."""
        try:
            if self._connection is not None and self.file.info is not None:
                await self._connection.run(self.file.settle)
        finally:
            async with self._reading:
                await self._close_connections()
            self.file.release()

    async def fetchall(self, sql: str, row: Sequence[Any]) -> list[Row]:
        """Read beside the writer."""
        async with self._reading:
            if self._reader is None:
                raise StoreClosedError("the store is closed: open it again")
            with explained(self._path, was_store=True):
                return await self._reader.fetchall(sql, row)

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in the writer's connection; by the writer's task only."""
        if self._connection is None:
            raise StoreClosedError("the store is closed: open it again")
        return await self._connection.run(job)

    async def _close_connections(self) -> None:
        # The reader first: the last one to close copies the log into the file, which a reader cannot. Each is
        # forgotten before it is closed, so that a repeated close goes on where a cancelled one stopped.
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        writer, self._connection = self._connection, None
        if writer is not None:
            await writer.close()
