"""One batch in the thread of its connection: BEGIN IMMEDIATE, the statements grouped by shape, COMMIT.

Runs as a single job, so no other statement of this process can slip into the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from answerback.errors import StoreError
from answerback.store.statements import Statement
from answerback.store.trouble import Trouble, classify, name_of

Counts = tuple[int, ...]


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one batch."""

    results: tuple[Counts | StoreError, ...] = ()
    """Per transaction: its counts, or why it was refused. Complete whenever COMMIT was reached."""
    trouble: Trouble | None = None
    """None: the batch is on stable storage."""
    detail: str = ""
    """SQLite's name for the trouble."""
    committing: bool = False
    """Whether the trouble came from COMMIT itself, so that the batch may be there all the same."""


class _Group:
    """Statements of one shape, and the place of each in the batch."""

    __slots__ = ("places", "rows", "sql")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.rows: list[Sequence[object]] = []
        self.places: list[int] = []


def group(statements: Sequence[Statement]) -> list[_Group]:
    """Gather statements of one shape, as few groups as possible, without ever reordering those on one subject.

    A statement joins the newest group of its shape when its subject does not appear in a later group; within a group
    order is kept.
    """
    groups: list[_Group] = []
    newest: dict[str, int] = {}
    last: dict[Hashable, int] = {}
    for place, statement in enumerate(statements):
        index = newest.get(statement.sql, -1)
        if index < last.get(statement.subject, 0):
            index = len(groups)
            groups.append(_Group(statement.sql))
            newest[statement.sql] = index
        groups[index].rows.append(statement.row)
        groups[index].places.append(place)
        last[statement.subject] = index
    return groups


def apply(connection: sqlite3.Connection, transactions: Sequence[Sequence[Statement]], *, number: int) -> Applied:
    """Commit these transactions together, as batch `number` of this incarnation.

    A statement that cannot be applied costs its own transaction only: the batch is then run again, each transaction
    under a savepoint of its own.
    """
    applied = _attempt(connection, transactions, number, isolated=False)
    if applied.trouble is Trouble.REFUSED:
        applied = _attempt(connection, transactions, number, isolated=True)
    return applied


def _attempt(
    connection: sqlite3.Connection, transactions: Sequence[Sequence[Statement]], number: int, *, isolated: bool
) -> Applied:
    results: tuple[Counts | StoreError, ...] = ()
    committing = False
    try:
        connection.execute("BEGIN IMMEDIATE")
        run = _run_isolated if isolated else _run_grouped
        results = run(connection, transactions)
        connection.execute("UPDATE meta SET batch = ?", (number,))
        committing = True
        connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - every failure becomes a verdict of the writer
        trouble, detail = classify(error), name_of(error)
        if not _roll_back(connection):
            trouble = Trouble.BROKEN
        return Applied(results=results, trouble=trouble, detail=detail, committing=committing)
    return Applied(results=results)


def _roll_back(connection: sqlite3.Connection) -> bool:
    """End the transaction if SQLite has not done so itself; return whether that worked."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True


def _run_grouped(connection: sqlite3.Connection, transactions: Sequence[Sequence[Statement]]) -> tuple[Counts, ...]:
    statements = [statement for transaction in transactions for statement in transaction]
    counts = [0] * len(statements)
    for gathered in group(statements):
        connection.executemany(gathered.sql, _counted(connection, gathered, counts))
    left = iter(counts)
    return tuple(tuple(next(left) for _ in transaction) for transaction in transactions)


def _counted(connection: sqlite3.Connection, gathered: _Group, counts: list[int]) -> Iterator[Sequence[object]]:
    """Yield the rows to `executemany`, which asks for the next one when the one before has been run.

    So what `total_changes` grew by belongs to the row before. It also counts what triggers did: only whether it grew
    is read. This costs a tenth of a microsecond per statement; `execute` and its `rowcount` cost three to nine tenths.
    """
    before = connection.total_changes
    for place, row in zip(gathered.places, gathered.rows, strict=True):
        yield row
        after = connection.total_changes
        counts[place] = int(after != before)
        before = after


def _run_isolated(
    connection: sqlite3.Connection, transactions: Sequence[Sequence[Statement]]
) -> tuple[Counts | StoreError, ...]:
    results: list[Counts | StoreError] = []
    for transaction in transactions:
        connection.execute("SAVEPOINT one")
        try:
            results.extend(_run_grouped(connection, [transaction]))
        except Exception as error:
            if classify(error) is not Trouble.REFUSED:
                raise
            connection.execute("ROLLBACK TO one")
            results.append(StoreError(f"the store refused this write ({name_of(error)}); nothing of it was applied"))
        connection.execute("RELEASE one")
    return tuple(results)
