"""What SQLite is told for each `Write`: one SQL text per shape, one row of values per statement.

Statements of one shape share their text, so that a batch runs each with one `executemany`. The `subject` names what a
statement is about: statements on one subject keep their order, others may be regrouped within a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from answerback.model import CallKey, CallRecord, CallState, InputRecord, SessionRecord
from answerback.store.base import (
    DecideApproval,
    InsertCall,
    PutApproval,
    PutCheckpoint,
    PutInput,
    PutLate,
    PutSession,
    PutSubstitute,
    UpdateCall,
    UpdateInput,
    UpdateSession,
    UseApproval,
    Write,
)

CALL_COLUMNS = tuple(name for name in CallRecord.__struct_fields__ if name not in {"key", "substitute"})
"""The columns of `calls` that are fields of a CallRecord; the key is three columns, the substitute another table."""
CALL_CHANGES = frozenset(CALL_COLUMNS) - {"state", "outcome_hash"}
SESSION_COLUMNS = SessionRecord.__struct_fields__
SESSION_CHANGES = frozenset(SESSION_COLUMNS) - {"local_id"}
INPUT_COLUMNS = tuple(name for name in InputRecord.__struct_fields__ if name != "seq")
INPUT_CHANGES = frozenset(INPUT_COLUMNS) - {"session_id", "key"}

_BY_KEY = "session_id = ? AND turn_id = ? AND call_id = ?"
_CALL_ID = f"(SELECT id FROM calls WHERE {_BY_KEY})"  # noqa: S608 - constant text


class Statement(NamedTuple):
    """One compiled write: its SQL, the values of its parameters, and what it is about."""

    sql: str
    row: Sequence[Any]
    subject: Hashable


def outcome_hash(outcome: bytes) -> str:
    """Return the sha256 (hex) under which an outcome's bytes are recorded."""
    return hashlib.sha256(outcome).hexdigest()


def check_changes(write: Write) -> None:
    """Refuse a write that names columns it may not change, or that would take an outcome back.

    Raises:
        ValueError: the write can never be applied; the text names the columns.
    """
    match write:
        case UpdateCall():
            _check_names(write.changes, CALL_CHANGES)
            if "outcome" in write.changes and write.changes["outcome"] is None:
                raise ValueError("an outcome cannot be taken back: leave `outcome` out of `changes`")
        case UpdateSession():
            _check_names(write.changes, SESSION_CHANGES)
        case UpdateInput():
            _check_names(write.changes, INPUT_CHANGES)
        case InsertCall() if write.record.substitute is not None:
            raise ValueError("a call is observed without a substitute: use PutSubstitute")
        case _:
            pass


def _check_names(changes: Iterable[str], allowed: frozenset[str]) -> None:
    unknown = sorted(set(changes) - allowed)
    if unknown:
        raise ValueError(f"these columns cannot be changed: {', '.join(unknown)}")


_EXACT = frozenset({str, int, bytes, type(None)})
_CLOSED = frozenset(state.value for state in CallState if state.closed)


def _plain(value: Any) -> Any:
    """Give SQLite a value of an exact built-in type: anything else costs it a look-up of adapters."""
    if type(value) in _EXACT:
        return value
    if isinstance(value, Enum):
        return value.value
    return int(value) if isinstance(value, bool) else value


def _values(fields: Iterable[Any]) -> list[Any]:
    return [value if type(value) in _EXACT else _plain(value) for value in fields]


def _insert(table: str, columns: Iterable[str], conflict: str) -> str:
    names = tuple(columns)
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) {conflict}"  # noqa: S608 - our own names


_INSERT_CALL = _insert(
    "calls",
    ("session_id", "turn_id", "call_id", "digest", "open", "changed_at", *CALL_COLUMNS),
    "ON CONFLICT (session_id, turn_id, call_id) DO NOTHING",
)
_PUT_SUBSTITUTE = (
    "INSERT INTO substitutes (call, element, reason, at) "  # noqa: S608 - constant text
    f"SELECT id, ?, ?, ? FROM calls WHERE {_BY_KEY} ON CONFLICT (call) DO NOTHING"
)
# A late return or a checkpoint of a call without a row is a mistake, not a race: NOT NULL refuses the transaction.
_PUT_LATE = f"INSERT INTO late (attempt, at, kind, element, call) VALUES (?, ?, ?, ?, {_CALL_ID})"  # noqa: S608
_PUT_CHECKPOINT = (
    f"INSERT INTO checkpoints (attempt, name, value, at, call) VALUES (?, ?, ?, ?, {_CALL_ID}) "  # noqa: S608
    "ON CONFLICT (call, name) DO UPDATE SET attempt = excluded.attempt, value = excluded.value, at = excluded.at"
)
_PUT_APPROVAL = (
    "INSERT INTO approvals (call, digest, asked_at) "  # noqa: S608 - constant text
    f"SELECT id, ?, ? FROM calls WHERE {_BY_KEY} ON CONFLICT (call) DO NOTHING"
)
_DECIDE_APPROVAL = (
    "UPDATE approvals SET verdict = ?, decided_at = ?, decided_by = ?, reason = ? "  # noqa: S608 - constant text
    f"WHERE call = {_CALL_ID} AND verdict IS NULL"
)
_USE_APPROVAL = (
    "UPDATE approvals SET used_at = coalesce(used_at, ?) "  # noqa: S608 - constant text
    f"WHERE call = {_CALL_ID} AND verdict = 'approved' AND digest = ?"
)
_call_fields = attrgetter(*CALL_COLUMNS)
_session_fields = attrgetter(*SESSION_COLUMNS)
_input_fields = attrgetter(*INPUT_COLUMNS)
_PUT_SESSION = _insert("sessions", SESSION_COLUMNS, "ON CONFLICT DO NOTHING")
_PUT_INPUT = _insert("inputs", INPUT_COLUMNS, "ON CONFLICT (session_id, key) DO NOTHING")

_SESSIONS = "sessions"
"""The subject of every session write: their names are unique across rows, so they all keep their order."""


class Compiler:
    """Turns writes into statements, and remembers the SQL of each shape of update it met.

    The names in a shape are checked when it is met first.
    """

    def __init__(self) -> None:
        self._updates: dict[tuple[Any, ...], str] = {}

    def __repr__(self) -> str:
        return f"<Compiler {len(self._updates)} shapes>"

    def compile(self, write: Write) -> Statement:
        """Return the statement of one write.

        Raises:
            ValueError: the write names columns it may not change.
            TypeError: it is not a write at all.
        """
        row: tuple[Any, ...]
        match write:
            case UpdateCall():
                return self._update_call(write)
            case InsertCall():
                return _insert_call(write)
            case PutSubstitute():
                row = (write.element, write.reason, write.at, *_parts(write.key))
                return Statement(_PUT_SUBSTITUTE, row, write.key)
            case PutLate():
                late = write.record
                row = (late.attempt, late.at, late.kind, late.element, *_parts(late.key))
                return Statement(_PUT_LATE, row, late.key)
            case PutCheckpoint():
                row = (write.attempt, write.name, write.value, write.at, *_parts(write.key))
                return Statement(_PUT_CHECKPOINT, row, write.key)
            case PutApproval():
                return Statement(_PUT_APPROVAL, (write.digest, write.at, *_parts(write.key)), write.key)
            case DecideApproval():
                row = (write.verdict, write.at, write.by, write.reason, *_parts(write.key))
                return Statement(_DECIDE_APPROVAL, row, write.key)
            case UseApproval():
                return Statement(_USE_APPROVAL, (write.at, *_parts(write.key), write.digest), write.key)
            case PutSession():
                return Statement(_PUT_SESSION, _values(_session_fields(write.record)), _SESSIONS)
            case UpdateSession():
                return self._update_session(write)
            case PutInput():
                record = write.record
                return Statement(_PUT_INPUT, _values(_input_fields(record)), ("input", record.session_id))
            case UpdateInput():
                return self._update_input(write)
            case _:
                raise TypeError(f"not a write: {type(write).__name__}")

    def _update_call(self, write: UpdateCall) -> Statement:
        changes = {"reason": write.reason, **write.changes}
        outcome: bytes | None = write.changes.get("outcome")
        if outcome is not None:
            changes["outcome_hash"] = outcome_hash(outcome)
        target = str(write.target)
        sources = [str(source) for source in write.sources]
        opens = 0 if target in _CLOSED else 1 if not _CLOSED.isdisjoint(sources) else None
        shape = (opens, len(sources), write.token is None, write.attempt is None, *changes)
        sql = self._updates.get(shape)
        if sql is None:
            sql = self._updates[shape] = _update_call_sql(write, changes, opens)
        if outcome is None and "outcome" in changes:
            check_changes(write)
        row = [target, write.at, *_values(changes.values()), *_parts(write.key), *sources]
        if write.token is not None:
            row.append(write.token)
        if write.attempt is not None:
            row.append(write.attempt)
        return Statement(sql, row, write.key)

    def _update_session(self, write: UpdateSession) -> Statement:
        sql = self._update("sessions", write, "local_id = ?")
        return Statement(sql, [*_values(write.changes.values()), write.local_id], _SESSIONS)

    def _update_input(self, write: UpdateInput) -> Statement:
        where = "session_id = ? AND key = ?"
        if write.sources:
            where += f" AND state IN ({', '.join('?' * len(write.sources))})"
        sql = self._update("inputs", write, where)
        row = [*_values(write.changes.values()), write.session_id, write.key, *write.sources]
        return Statement(sql, row, ("input", write.session_id))

    def _update(self, table: str, write: UpdateSession | UpdateInput, where: str) -> str:
        shape = (table, where, *write.changes)
        sql = self._updates.get(shape)
        if sql is None:
            check_changes(write)
            # An update of nothing still counts the row it would have changed.
            sets = ", ".join(f"{column} = ?" for column in write.changes) or "updated_at = updated_at"
            sql = self._updates[shape] = f"UPDATE {table} SET {sets} WHERE {where}"  # noqa: S608 - checked names
        return sql


def _update_call_sql(write: UpdateCall, changes: Iterable[str], opens: int | None) -> str:
    check_changes(write)
    sets = ", ".join(f"{column} = ?" for column in changes)
    if opens is not None:
        sets += f", open = {opens}"
    sql = f"UPDATE calls SET state = ?, steps = steps + 1, changed_at = ?, {sets} WHERE {_BY_KEY}"  # noqa: S608 - checked names
    sql += f" AND state IN ({', '.join('?' * len(write.sources))})"
    sql += "" if write.token is None else " AND token = ?"
    sql += "" if write.attempt is None else " AND attempt = ?"
    sql += "" if write.changes.get("outcome") is None else " AND outcome IS NULL"
    return sql


def _parts(key: CallKey) -> tuple[str, str, str]:
    return key.session_id, key.turn_id, key.call_id


def _insert_call(write: InsertCall) -> Statement:
    record = write.record
    if record.substitute is not None:
        check_changes(write)
    if record.outcome is not None:
        record = msgspec.structs.replace(record, outcome_hash=outcome_hash(record.outcome))
    key = record.key
    opens = 0 if str(record.state) in _CLOSED else 1
    row = [*_parts(key), key.digest, opens, record.observed_at, *_values(_call_fields(record))]
    return Statement(_INSERT_CALL, row, key)
