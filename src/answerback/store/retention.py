"""What a store gives up with time: first the payloads of sessions that are at rest, later their rows.

A session is at rest when no turn, call or input of it is open. Nothing here touches an open call. All of it blocks and
runs in the connection's thread, in transactions short enough that a call waits for none of them noticeably.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

logger = logging.getLogger("answerback.store")

DAY = 86_400.0
"""Seconds."""
PAYLOADS_AFTER = 30 * DAY
ROWS_AFTER = 180 * DAY
"""Longer than payloads: while a call's row is there, the call is never taken for a new one."""
CALLS_AT_ONCE = 500
SESSIONS_AT_ONCE = 100
PAGES_AT_ONCE = 2_000
"""8 MiB of pages given back per step."""

T = TypeVar("T")
RetainPayloads: TypeAlias = Literal["until_pruned", "until_acked"]

_AT_REST = """
    sessions.session_id IS NOT NULL AND sessions.active = 0 AND sessions.updated_at < :before
    AND NOT EXISTS (SELECT 1 FROM calls WHERE calls.session_id = sessions.session_id
                    AND (calls.open = 1 OR calls.changed_at >= :before))
    AND NOT EXISTS (SELECT 1 FROM inputs WHERE inputs.session_id = sessions.session_id
                    AND (inputs.state NOT IN ('done', 'refused') OR inputs.updated_at >= :before))
"""
_HAS_PAYLOAD = """
    (calls.outcome IS NOT NULL OR calls.arguments != x''
     OR EXISTS (SELECT 1 FROM substitutes WHERE substitutes.call = calls.id)
     OR EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.call = calls.id)
     OR EXISTS (SELECT 1 FROM late WHERE late.call = calls.id))
"""
_FORGET = "UPDATE calls SET arguments = x'', outcome = NULL WHERE id = {call}"
_FORGET_REST = tuple(
    f"DELETE FROM {table} WHERE call = {{call}}"  # noqa: S608 - our own names
    for table in ("substitutes", "checkpoints", "late")
)

_FORGET_WHEN_ACKED = """
    PRAGMA secure_delete = ON;
    PRAGMA temp_store = MEMORY;
    CREATE TEMP TABLE forgotten (call INTEGER);
    CREATE TEMP TRIGGER forget AFTER UPDATE OF state ON main.calls WHEN new.state IN ('acked', 'superseded') BEGIN
        -- forget
        INSERT INTO forgotten VALUES (new.id);
    END;
"""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a pruning took."""

    payloads: int = 0
    """Calls whose arguments and results were forgotten."""
    inputs: int = 0
    """Inputs whose text was forgotten."""
    calls: int = 0
    """Rows of calls that were deleted."""
    sessions: int = 0
    """Rows of sessions that were deleted; one with a key is kept, or `open` would begin it anew."""
    freed_bytes: int = 0
    """What the file shrank by."""

    def plus(self, other: Pruned) -> Pruned:
        """Return the sum of two."""
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Pruned(**dict(zip(self.__struct_fields__, map(sum, zip(mine, theirs, strict=True)), strict=True)))


class RunJob(Protocol):
    """Runs a job on the connection of an open store, between two commits."""

    async def __call__(self, job: Callable[[sqlite3.Connection], T], /) -> T:
        """Run it and return what it returns."""
        ...


async def prune(run: RunJob, *, payloads_before: int, rows_before: int) -> Pruned:
    """Forget, delete, and give the room back, step by step; calls go on between the steps.

    Args:
        run: the connection.
        payloads_before: sessions at rest since before this moment (microseconds) lose their payloads.
        rows_before: those at rest since before this one lose their rows.
    """
    size = await run(size_of)
    total = Pruned()
    for step, before in ((forget_payloads, payloads_before), (delete_rows, rows_before)):
        sessions = await run(partial(sessions_at_rest, before=before))
        for start in range(0, len(sessions), SESSIONS_AT_ONCE):
            some = sessions[start : start + SESSIONS_AT_ONCE]
            while True:
                taken = await run(partial(step, sessions=some, before=before))
                total = total.plus(taken)
                if max(taken.payloads, taken.calls) < CALLS_AT_ONCE:
                    break
    while await run(shrink):
        pass
    await run(empty_log)
    return msgspec.structs.replace(total, freed_bytes=max(0, size - await run(size_of)))


def sessions_at_rest(connection: sqlite3.Connection, *, before: int) -> list[str]:
    """Return the sessions nothing happened in since `before` (microseconds), and nothing is open in."""
    sql = f"SELECT session_id FROM sessions WHERE {_AT_REST}"  # noqa: S608 - constant text
    return [row[0] for row in connection.execute(sql, {"before": before})]


def prunable_bytes(connection: sqlite3.Connection, *, before: int) -> int:
    """Return how many bytes of payload `forget_payloads` would find."""
    names = f"SELECT session_id FROM sessions WHERE {_AT_REST}"  # noqa: S608 - constant text
    calls = "SELECT coalesce(sum(length(arguments) + coalesce(length(outcome), 0)), 0) FROM calls"
    inputs = "SELECT coalesce(sum(length(element)), 0) FROM inputs"
    found = [
        connection.execute(f"{sql} WHERE session_id IN ({names})", {"before": before}).fetchone()[0]
        for sql in (calls, inputs)
    ]
    return sum(found)


def forget_payloads(connection: sqlite3.Connection, sessions: Sequence[str], *, before: int) -> Pruned:
    """Forget payloads of these sessions, at most CALLS_AT_ONCE of them; nothing is counted when none is left."""
    with _transaction(connection):
        still = _still_at_rest(connection, sessions, before)
        marks = _marks(still)
        found = connection.execute(
            f"SELECT id FROM calls WHERE session_id IN ({marks}) AND open = 0 AND {_HAS_PAYLOAD} LIMIT ?",  # noqa: S608
            (*still, CALLS_AT_ONCE),
        ).fetchall()
        for statement in (_FORGET, *_FORGET_REST):
            connection.executemany(statement.format(call="?"), found)
        inputs = connection.execute(
            f"UPDATE inputs SET element = x'' WHERE session_id IN ({marks}) AND element != x''",  # noqa: S608
            still,
        ).rowcount
        connection.execute(
            f"UPDATE sessions SET request = NULL WHERE session_id IN ({marks}) AND request IS NOT NULL",  # noqa: S608
            still,
        )
        return Pruned(payloads=len(found), inputs=inputs)


def delete_rows(connection: sqlite3.Connection, sessions: Sequence[str], *, before: int) -> Pruned:
    """Delete rows of these sessions, at most CALLS_AT_ONCE calls; a session's own row goes with its last call."""
    with _transaction(connection):
        still = _still_at_rest(connection, sessions, before)
        marks = _marks(still)
        calls = connection.execute(
            f"DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE session_id IN ({marks}) LIMIT ?)",  # noqa: S608
            (*still, CALLS_AT_ONCE),
        ).rowcount
        if calls == CALLS_AT_ONCE:
            return Pruned(calls=calls)
        connection.execute(f"DELETE FROM inputs WHERE session_id IN ({marks})", still)  # noqa: S608
        gone = connection.execute(
            f"DELETE FROM sessions WHERE session_id IN ({marks}) AND (key IS NULL OR state IN ('failed', 'gone'))",  # noqa: S608
            still,
        ).rowcount
        return Pruned(calls=calls, sessions=gone)


def shrink(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the file system; return whether more are left.

    Through `executescript`, because `execute` would step the pragma once and so free a single page.
    """
    connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    return bool(_pragma(connection, "freelist_count"))


def empty_log(connection: sqlite3.Connection) -> bool:
    """Copy the log into the file and cut it to nothing; return whether that worked, which a reader may prevent."""
    patience = _pragma(connection, "busy_timeout")
    # Without patience: calls wait for this connection, and there is a next time.
    connection.execute("PRAGMA busy_timeout = 0").fetchall()
    try:
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
    return busy == 0


def size_of(connection: sqlite3.Connection) -> int:
    """Return the bytes of the file, as of the last commit."""
    return _pragma(connection, "page_count") * _pragma(connection, "page_size")


def keep_until_acked(connection: sqlite3.Connection) -> None:
    """Let this connection forget the payload of every call in the commit that marks it as taken by the server.

    The trigger lives in the connection and not in the file, so a store opened without the option keeps what it writes.
    """
    statements = "; ".join(statement.format(call="new.id") for statement in (_FORGET, *_FORGET_REST))
    connection.executescript(_FORGET_WHEN_ACKED.replace("-- forget", f"{statements};"))


def wipe_log(connection: sqlite3.Connection) -> None:
    """After a commit that forgot something: the log still has the pages as they were before.

    What a reader, or the disk, prevents now is done after the next commit, or when the store is closed.
    """
    try:
        if connection.execute("SELECT 1 FROM temp.forgotten LIMIT 1").fetchone() and empty_log(connection):
            connection.execute("DELETE FROM temp.forgotten")
    except sqlite3.Error as error:
        # The commit before it is on stable storage; a disk that is really broken fails the next one.
        logger.warning("the store's log could not be emptied", extra={"error": error.sqlite_errorname})


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    # What is deleted is overwritten: a freed cell in a page that stays would keep its bytes.
    before = _pragma(connection, "secure_delete")
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.execute(f"PRAGMA secure_delete = {before}").fetchall()


def _still_at_rest(connection: sqlite3.Connection, sessions: Sequence[str], before: int) -> list[str]:
    """Ask again inside the transaction: a session may have woken up since it was listed."""
    sql = f"SELECT session_id FROM sessions WHERE session_id = :session AND {_AT_REST}"  # noqa: S608 - constant text
    found = (connection.execute(sql, {"session": one, "before": before}).fetchone() for one in sessions)
    return [row[0] for row in found if row is not None]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
