"""Reading a store file beside the process that owns it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from answerback.errors import RuntimeStateError
from answerback.store.connection import Connection, connect
from answerback.store.lock import lock_owner as lock_owner
from answerback.store.opening import explained, open_reader
from answerback.store.reads import JournalReads
from answerback.store.rows import Row


class SQLiteReader(JournalReads):
    """The read methods of a store, on a file another process may be writing; takes no lock.

    Use as an async context manager. Reads are short, because a long one would keep the owner's log from shrinking.
    """

    def __init__(self, path: str | os.PathLike[str] = "answerback.db") -> None:
        self._path = Path(path).absolute()
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<SQLiteReader {self._path.name} {'closed' if self._connection is None else 'open'}>"

    async def open(self) -> None:
        """Open the file for reading.

        Raises:
            StoreUnavailableError: there is no such file, or it may not be read.
            StoreVersionError: it is not a store of this release.
            StoreCorruptError: it is damaged.
        """
        if self._connection is not None:
            raise RuntimeStateError("this reader is open already")
        self._connection = await connect(lambda: open_reader(self._path))

    async def aclose(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[Row]:
        if self._connection is None:
            raise RuntimeStateError("open the reader first: async with SQLiteReader(path) as reader")
        with explained(self._path, was_store=True):
            return await self._connection.fetchall(sql, row)
