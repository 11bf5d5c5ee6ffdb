"""What a failure of SQLite means for the writes that met it."""

from __future__ import annotations

import sqlite3
from enum import Enum


class Trouble(Enum):
    """The three things a failed batch can mean."""

    WAIT = "wait"
    """It may pass (a lock held elsewhere, a full disk): nothing was written, the same batch is tried again."""
    REFUSED = "refused"
    """One statement cannot be applied: its transaction is refused, the others are not concerned."""
    BROKEN = "broken"
    """The file or the device misbehaved: nobody knows what is on it until it was opened again."""


_WAIT = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM})
_WAIT_EXTENDED = frozenset(
    {
        # Growing the shared memory file of the WAL on a full disk is reported as an I/O error.
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_NOMEM,
        sqlite3.SQLITE_IOERR_BLOCKED,
    }
)
_REFUSED = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_RANGE,
    }
)
_PRIMARY = 0xFF
"""SQLite's extended result codes carry the primary one in their low byte (sqlite.org/rescode.html)."""


def classify(error: Exception) -> Trouble:
    """Say what an exception raised while a batch was applied means.

    An exception without a result code was raised by Python before SQLite saw the statement: an integer too large, a
    string that is not text, a value of a type SQLite does not know.
    """
    if isinstance(error, MemoryError):
        return Trouble.WAIT
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return Trouble.REFUSED
    if code in _WAIT_EXTENDED or code & _PRIMARY in _WAIT:
        return Trouble.WAIT
    return Trouble.REFUSED if code & _PRIMARY in _REFUSED else Trouble.BROKEN


def name_of(error: Exception) -> str:
    """Return a name for an error that contains no values: SQLite's symbol, or the exception's type."""
    name: str = getattr(error, "sqlite_errorname", "")
    return name or type(error).__name__
