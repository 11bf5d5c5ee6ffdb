"""SQLite from a coroutine: five methods, on any backend, with one thread at a time inside the connection.

Under asyncio it is aiosqlite; elsewhere sqlite3 in worker threads behind a limiter of one slot. Either way a `run` is
one trip to the thread however many statements it makes, and nothing of this process can come in between.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import aiosqlite
import anyio
import anyio.to_thread

T = TypeVar("T")
Row = tuple[Any, ...]

_ITER_CHUNK = 64
"""aiosqlite's own default for rows fetched per trip by its iterators, which we do not use."""


class RawConnection(sqlite3.Connection):
    """A sqlite3 connection that can be handed a job, to be run by the next `commit`.

    aiosqlite runs only methods of the connection in its thread, one trip each. `commit` is one of them, and means
    nothing on a connection in autocommit mode; so it is how a whole batch gets there in one trip.
    """

    job: Callable[[], None] | None = None

    def commit(self) -> None:
        """Run the job that was handed over, if there is one."""
        job, self.job = self.job, None
        if job is not None:
            job()


class Connection(Protocol):
    """The five things a store asks of its connection."""

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` in the connection's thread and return what it returns; a cancellation waits for it."""
        ...

    async def execute(self, sql: str, row: Sequence[Any] = ()) -> None:
        """Run one statement for its effect."""
        ...

    async def fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        ...

    async def executescript(self, sql: str) -> None:
        """Run several statements that take no values."""
        ...

    async def close(self) -> None:
        """Close the connection and end its thread. Closing twice is allowed."""
        ...


def in_asyncio_task() -> bool:
    """Tell whether the caller runs in an asyncio task (and not in trio, not even in trio's guest mode)."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


async def connect(opener: Callable[[], RawConnection], *, interrupted: Callable[[], None] = lambda: None) -> Connection:
    """Return a connection made by `opener` in the thread that may block.

    Args:
        opener: opens and prepares the file. What it raises is raised here.
        interrupted: called when a native cancellation arrives during a `run`, which is finished all the same.
    """
    if in_asyncio_task():
        return await _AioConnection.open(opener, interrupted)
    limiter = anyio.CapacityLimiter(1)
    return _ThreadConnection(await anyio.to_thread.run_sync(opener, limiter=limiter), limiter)


class _AioConnection:
    """A connection in aiosqlite's thread."""

    def __init__(self, database: aiosqlite.Connection, raw: RawConnection, interrupted: Callable[[], None]) -> None:
        self._database = database
        self._raw = raw
        self._interrupted = interrupted
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self._closed else 'open'}>"

    @classmethod
    async def open(cls, opener: Callable[[], RawConnection], interrupted: Callable[[], None]) -> _AioConnection:
        """Start the thread and open the file in it. When this is cancelled, nothing stays open."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        opened: list[RawConnection] = []
        refused: list[Exception] = []

        def connector() -> sqlite3.Connection:
            # A connector that raises would leave aiosqlite's thread speaking to a loop that may be closed by then: it
            # stops that thread without waiting. A stand-in is closed as any connection is, and that is waited for.
            try:
                opened.append(opener())
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's task
                refused.append(error)
                opened.append(sqlite3.connect(":memory:", factory=RawConnection))
            finally:
                loop.call_soon_threadsafe(over.set_result, None)
            return opened[0]

        database = await _daemonic(connector)
        try:
            await database
        except asyncio.CancelledError:
            await _outlast(over)
            for raw in opened:
                raw.close()
            raise
        if refused:
            await database.close()
            raise refused[0]
        return cls(database, opened[0], interrupted)

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        outcome: list[T] = []
        errors: list[Exception] = []

        def keep() -> None:
            try:
                outcome.append(job(self._raw))
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's task
                errors.append(error)

        self._raw.job = keep
        while not outcome and not errors:
            try:
                await self._database.commit()
            except asyncio.CancelledError:
                # The job runs whatever happens to this task, and the thread takes one after the other: the next trip
                # comes back when it is over.
                self._interrupted()
        if errors:
            raise errors[0]
        return outcome[0]

    async def execute(self, sql: str, row: Sequence[Any] = ()) -> None:
        await self._database.execute_fetchall(sql, row)

    async def fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[Row]:
        return cast("list[Row]", await self._database.execute_fetchall(sql, row))

    async def executescript(self, sql: str) -> None:
        await (await self._database.executescript(sql)).close()

    async def close(self) -> None:
        if self._closed:
            return
        # First in a way no cancellation can cut short: the lock on the file is given back after this.
        await self.run(sqlite3.Connection.close)
        self._closed = True
        await self._database.close()


async def _daemonic(connector: Callable[[], sqlite3.Connection]) -> aiosqlite.Connection:
    """Make an aiosqlite connection whose thread does not keep the interpreter alive when nobody closes it.

    aiosqlite has no option for it, but a thread inherits being a daemon from the thread that makes it (documented in
    `threading`), so a short-lived daemon makes the connection object.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[aiosqlite.Connection] = loop.create_future()

    def deliver(database: aiosqlite.Connection) -> None:
        if not made.done():
            made.set_result(database)

    def make() -> None:
        loop.call_soon_threadsafe(deliver, aiosqlite.Connection(connector, _ITER_CHUNK))

    threading.Thread(target=make, name="answerback-store-maker", daemon=True).start()
    return await made


async def _outlast(future: asyncio.Future[None]) -> None:
    """Wait for `future` through any number of cancellations."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue


class _ThreadConnection:
    """A connection used from worker threads, one at a time."""

    def __init__(self, raw: RawConnection, limiter: anyio.CapacityLimiter) -> None:
        self._raw = raw
        self._limiter = limiter
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'closed' if self._closed else 'open'}>"

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        # to_thread waits for the thread when it is cancelled, but would then forget what the job returned.
        outcome: list[T] = []
        with anyio.CancelScope(shield=True):
            outcome.append(await anyio.to_thread.run_sync(job, self._raw, limiter=self._limiter))
        return outcome[0]

    async def execute(self, sql: str, row: Sequence[Any] = ()) -> None:
        await self.fetchall(sql, row)

    async def fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[Row]:
        def fetch() -> list[Row]:
            return self._raw.execute(sql, row).fetchall()

        return await anyio.to_thread.run_sync(fetch, limiter=self._limiter)

    async def executescript(self, sql: str) -> None:
        await anyio.to_thread.run_sync(self._raw.executescript, sql, limiter=self._limiter)

    async def close(self) -> None:
        await self.run(sqlite3.Connection.close)
        self._closed = True
