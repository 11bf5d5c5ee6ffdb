"""One SQLite file of the bot's own, beside the journal: a statement that returned is on the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread


class Database:
    """A connection that one thread at a time uses, never the event loop's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._turn = anyio.Lock()

    async def run(self, statement: str, *values: Any) -> list[Any]:
        """Run one statement, commit it, and return its rows."""
        async with self._turn:
            return await anyio.to_thread.run_sync(self._run, statement, values)

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with self._connection:
            return self._connection.execute(statement, values).fetchall()


@asynccontextmanager
async def open_database(path: str | Path, *tables: str) -> AsyncGenerator[Database]:
    """Open a file for the length of a block and create the tables it lacks."""
    connection = await anyio.to_thread.run_sync(lambda: sqlite3.connect(path, check_same_thread=False))
    try:
        database = Database(connection)
        for table in tables:
            await database.run(table)
        yield database
    finally:
        connection.close()
