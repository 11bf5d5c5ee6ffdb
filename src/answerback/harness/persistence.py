"""Durable state: one table of documents in SQLite, written before anything accepted is answered.

It survives `kill -9` (the process's death); it does not claim to survive power loss, so WAL with
`synchronous=NORMAL` is enough and an accepted input costs no fsync.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import anyio
import anyio.to_thread
import msgspec

Row: TypeAlias = tuple[str, str, bytes | None]
"""Kind, id and JSON; None deletes."""
FILE = "harness.db"
T = TypeVar("T")


class Documents:
    """The table, used from one thread at a time through a limiter with one slot (so on any backend).

    Args:
        folder: where the file is; None keeps nothing.
    """

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self._connection: sqlite3.Connection | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    def __repr__(self) -> str:
        where = "memory" if self.folder is None else str(self.folder)
        return f"<Documents {where} {'open' if self._connection else 'closed'}>"

    @property
    def durable(self) -> bool:
        """Whether anything is written at all."""
        return self.folder is not None

    async def open(self) -> dict[str, list[bytes]]:
        """Open or make the file and return every document by kind."""
        if self.folder is None:
            return {}
        self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(self._open, limiter=self._limiter)

    async def write(self, rows: Sequence[Row]) -> None:
        """Commit rows in one transaction; a cancelled caller keeps its write."""
        assert self._limiter is not None, "open comes first"
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._write, rows, limiter=self._limiter)

    async def aclose(self) -> None:
        """Close the file."""
        if self._connection is not None and self._limiter is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._connection.close, limiter=self._limiter)
            self._connection = None

    def _open(self) -> dict[str, list[bytes]]:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.folder / FILE, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS documents (kind TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL,"
            " PRIMARY KEY (kind, id)) STRICT"
        )
        self._connection = connection
        found: dict[str, list[bytes]] = {}
        for kind, data in connection.execute("SELECT kind, data FROM documents ORDER BY rowid"):
            found.setdefault(kind, []).append(data)
        return found

    def _write(self, rows: Sequence[Row]) -> None:
        connection = self._connection
        assert connection is not None, "open comes first"
        connection.execute("BEGIN IMMEDIATE")
        try:
            for kind, identity, data in rows:
                if data is None:
                    connection.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (kind, identity))
                else:
                    connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, identity, data))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def read_documents(found: dict[str, list[bytes]], kind: str, type: type[T]) -> list[T]:  # noqa: A002 - it is one
    """Decode every document of a kind."""
    return [msgspec.json.decode(data, type=type) for data in found.get(kind, ())]
