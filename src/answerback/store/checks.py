"""What must be true of every store file, beyond what SQLite itself can check."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator

import msgspec

from answerback.model import OPEN_STATES, CallKey

_OPEN = ", ".join(f"'{state.value}'" for state in sorted(OPEN_STATES))

_RULES: tuple[tuple[str, str], ...] = (
    (
        "a call's open flag is that of its state",
        f"SELECT digest FROM calls WHERE open != (state IN ({_OPEN}))",  # noqa: S608 - our own names
    ),
    (
        "an open call belongs to a session",
        (
            "SELECT digest FROM calls WHERE open = 1 AND session_id NOT IN "
            "(SELECT session_id FROM sessions WHERE session_id IS NOT NULL)"
        ),
    ),
    (
        "a call that is running, or may have run, has an attempt with a token",
        "SELECT digest FROM calls WHERE state = 'started' AND (attempt < 1 OR token IS NULL OR started_at IS NULL)",
    ),
    (
        "a result that is to be sent is there",
        (
            "SELECT digest FROM calls WHERE state IN ('finished', 'submitted') AND outcome IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM transitions WHERE call = calls.id AND target IN ('acked', 'superseded'))"
        ),
    ),
    (
        "an outcome has a kind and a hash",
        "SELECT digest FROM calls WHERE outcome IS NOT NULL AND (outcome_kind IS NULL OR outcome_hash IS NULL)",
    ),
    (
        "a substitute replaces a stored outcome",
        "SELECT digest FROM substitutes JOIN calls ON calls.id = call WHERE outcome IS NULL",
    ),
    (
        "a call that waits for an approval was asked about",
        "SELECT digest FROM calls WHERE state = 'waiting_approval' AND id NOT IN (SELECT call FROM approvals)",
    ),
    (
        "a decided approval has a moment, and an undecided one was not used",
        (
            "SELECT calls.digest FROM approvals JOIN calls ON calls.id = call "
            "WHERE (verdict IS NULL) != (decided_at IS NULL) OR (used_at IS NOT NULL AND verdict IS NOT 'approved')"
        ),
    ),
    (
        "a call's life ends where its row is",
        (
            "SELECT digest FROM calls LEFT JOIN transitions ON call = calls.id AND seq = steps "
            "WHERE target IS NULL OR target != state"
        ),
    ),
    (
        "a call's life has no gaps",
        (
            "SELECT digest FROM (SELECT call, seq, source, "
            "lag(target, 1, '') OVER (PARTITION BY call ORDER BY seq) AS before, "
            "row_number() OVER (PARTITION BY call ORDER BY seq) AS place FROM transitions) "
            "JOIN calls ON calls.id = call WHERE source != before OR seq != place"
        ),
    ),
    (
        "nothing was written by an incarnation that has not been",
        (
            "SELECT digest FROM transitions JOIN calls ON calls.id = call "
            "WHERE transitions.incarnation > (SELECT incarnation FROM meta)"
        ),
    ),
    (
        "a call was started once per attempt",
        (
            "SELECT digest FROM transitions JOIN calls ON calls.id = call WHERE target = 'started' "
            "GROUP BY call, transitions.attempt HAVING count(*) > 1"
        ),
    ),
)
"""What holds, and the calls for which it does not."""
_LISTED = 100


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    rule: str
    """What ought to hold."""
    subject: str
    """The call's public id, or what SQLite says of the file."""


def problems(connection: sqlite3.Connection) -> list[Problem]:
    """Return what is wrong with a store file, at most 100 things per rule; blocks for as long as reading it all takes.

    Only the first part that fails is reported: what SQLite cannot read need not be looked at for its meaning.
    """
    return list(_damage(connection)) or list(_dangling(connection)) or list(_broken_rules(connection))


def _damage(connection: sqlite3.Connection) -> Iterator[Problem]:
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_LISTED})").fetchall()
    except sqlite3.DatabaseError as error:
        rows = [(error.sqlite_errorname,)]
    yield from (Problem("SQLite finds the file whole", str(row[0])) for row in rows if row[0] != "ok")


def _dangling(connection: sqlite3.Connection) -> Iterator[Problem]:
    for table, *_ in connection.execute("PRAGMA foreign_key_check").fetchmany(_LISTED):
        yield Problem("every row belongs to a call that is there", f"table {table}")


def _broken_rules(connection: sqlite3.Connection) -> Iterator[Problem]:
    signed, used = connection.execute(
        "SELECT (SELECT count(*) FROM meta), EXISTS (SELECT 1 FROM calls) OR EXISTS (SELECT 1 FROM sessions)"
    ).fetchone()
    # Between the schema and the first signature a process may die; nothing was stored in it then.
    if signed > 1 or (used and not signed):
        yield Problem("a store says once which it is", "table meta")
    for rule, sql in _RULES:
        yield from (Problem(rule, row[0]) for row in connection.execute(sql).fetchmany(_LISTED))
    yield from _changed(connection)


def _changed(connection: sqlite3.Connection) -> Iterator[Problem]:
    """Look whether results are the bytes that were stored, and calls have the names they are found by."""
    found = 0
    rows = connection.execute("SELECT session_id, turn_id, call_id, digest, outcome, outcome_hash FROM calls")
    for session_id, turn_id, call_id, digest, outcome, outcome_hash in rows:
        named = CallKey(session_id, turn_id, call_id).digest
        if named != digest:
            yield Problem("a call's public id is the hash of its key", digest)
        elif outcome is not None and hashlib.sha256(outcome).hexdigest() != outcome_hash:
            yield Problem("a stored result is what its hash says", digest)
        else:
            continue
        found += 1
        if found >= _LISTED:
            return
