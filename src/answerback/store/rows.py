"""Rows of the SQLite tables as the records they stand for."""

from __future__ import annotations

from typing import Any, TypeVar

from answerback.model import (
    ApprovalRecord,
    CallKey,
    CallRecord,
    CallState,
    InputRecord,
    LateRecord,
    SessionRecord,
    TransitionRecord,
)
from answerback.store.statements import CALL_COLUMNS, SESSION_COLUMNS

Row = tuple[Any, ...]
R = TypeVar("R", SessionRecord, InputRecord)

_FLAGS = frozenset({"is_async", "active", "baseline_open"})


def _qualified(table: str, columns: tuple[str, ...]) -> str:
    return ", ".join(f"{table}.{column}" for column in columns)


SELECT_CALL = (
    f"SELECT calls.session_id, calls.turn_id, calls.call_id, {_qualified('calls', CALL_COLUMNS)}, "  # noqa: S608 - our own names
    "substitutes.element FROM calls LEFT JOIN substitutes ON substitutes.call = calls.id"
)
SELECT_SESSION = f"SELECT {_qualified('sessions', SESSION_COLUMNS)} FROM sessions"  # noqa: S608 - our own names
SELECT_INPUT = f"SELECT {_qualified('inputs', InputRecord.__struct_fields__)} FROM inputs"  # noqa: S608 - our own names
SELECT_TRANSITION = (
    "SELECT transitions.seq, transitions.at, transitions.source, transitions.target, transitions.attempt, "
    "transitions.incarnation, transitions.pid, transitions.reason FROM transitions JOIN calls ON calls.id = call"
)
SELECT_APPROVAL = (
    "SELECT approvals.digest, approvals.asked_at, approvals.decided_at, approvals.verdict, approvals.decided_by, "
    "approvals.reason, approvals.used_at FROM approvals JOIN calls ON calls.id = call"
)
SELECT_LATE = "SELECT late.attempt, late.at, late.kind, late.element FROM late JOIN calls ON calls.id = call"


def call_of(row: Row) -> CallRecord:
    """Return the record of a row of SELECT_CALL."""
    fields: dict[str, Any] = dict(zip(CALL_COLUMNS, row[3:-1], strict=True))
    fields["state"] = CallState(fields["state"])
    fields["is_async"] = bool(fields["is_async"])
    return CallRecord(key=CallKey(row[0], row[1], row[2]), substitute=row[-1], **fields)


def session_of(row: Row) -> SessionRecord:
    """Return the record of a row of SELECT_SESSION."""
    return _record(SessionRecord, row)


def input_of(row: Row) -> InputRecord:
    """Return the record of a row of SELECT_INPUT."""
    return _record(InputRecord, row)


def transition_of(key: CallKey, row: Row) -> TransitionRecord:
    """Return the record of a row of SELECT_TRANSITION."""
    return TransitionRecord(key=key, **dict(zip(TransitionRecord.__struct_fields__[1:], row, strict=True)))


def approval_of(key: CallKey, row: Row) -> ApprovalRecord:
    """Return the record of a row of SELECT_APPROVAL."""
    return ApprovalRecord(key=key, **dict(zip(ApprovalRecord.__struct_fields__[1:], row, strict=True)))


def late_of(key: CallKey, row: Row) -> LateRecord:
    """Return the record of a row of SELECT_LATE."""
    return LateRecord(key=key, **dict(zip(LateRecord.__struct_fields__[1:], row, strict=True)))


def _record(kind: type[R], row: Row) -> R:
    fields: dict[str, Any] = {}
    for name, value in zip(kind.__struct_fields__, row, strict=True):
        fields[name] = bool(value) if name in _FLAGS else value
    return kind(**fields)
