"""The read methods of a store, over any connection to its file. Each is one short SELECT."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from answerback.model import (
    OPEN_STATES,
    ApprovalRecord,
    CallKey,
    CallRecord,
    CallState,
    InputRecord,
    LateRecord,
    SessionOrigin,
    SessionRecord,
    TransitionRecord,
)
from answerback.store import rows

_BY_KEY = "calls.session_id = ? AND calls.turn_id = ? AND calls.call_id = ?"
# The very words of the partial indexes' conditions, so that SQLite sees that they apply.
_OPEN = "open = 1"
_OPEN_INPUT = "state NOT IN ('done', 'refused')"
_KEYS_PER_SELECT = 300
"""Three parameters a key; SQLite takes 32,766."""
_FOUND = 10
"""What `find_calls` returns at most: enough to list candidates."""


class JournalReads(ABC):
    """Reads over `_fetchall`, which a subclass provides."""

    @abstractmethod
    async def _fetchall(self, sql: str, row: Sequence[Any] = ()) -> list[rows.Row]:
        """Run one SELECT on the file."""

    async def open_calls(self, session_id: str) -> list[CallRecord]:
        """Return the session's calls that are not closed, oldest first."""
        sql = f"{rows.SELECT_CALL} WHERE calls.session_id = ? AND calls.{_OPEN} ORDER BY calls.id"
        return [rows.call_of(row) for row in await self._fetchall(sql, (session_id,))]

    async def calls_by_key(self, keys: Sequence[CallKey]) -> dict[CallKey, CallRecord]:
        """Return those of these calls that have a row, in whatever state."""
        found: dict[CallKey, CallRecord] = {}
        for start in range(0, len(keys), _KEYS_PER_SELECT):
            some = keys[start : start + _KEYS_PER_SELECT]
            # A plain IN of a list of triples would walk through the whole table.
            wanted = ", ".join(["(?, ?, ?)"] * len(some))
            sql = rows.SELECT_CALL.replace("FROM calls", f"FROM (VALUES {wanted}) CROSS JOIN calls")
            sql += " WHERE (calls.session_id, calls.turn_id, calls.call_id) = (column1, column2, column3)"
            values = [part for key in some for part in (key.session_id, key.turn_id, key.call_id)]
            for record in map(rows.call_of, await self._fetchall(sql, values)):
                found[record.key] = record
        return found

    async def calls(
        self, *, session_id: str | None = None, states: Sequence[CallState] | None = None, limit: int = 100
    ) -> list[CallRecord]:
        """Return calls, newest first."""
        conditions: list[str] = []
        values: list[Any] = []
        if session_id is not None:
            conditions.append("calls.session_id = ?")
            values.append(session_id)
        if states is not None:
            conditions.append(f"calls.state IN ({_marks(states)})")
            values += [state.value for state in states]
            if OPEN_STATES.issuperset(states):
                # Says the same again, in the words of the index of open calls.
                conditions.append(f"calls.{_OPEN}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"{rows.SELECT_CALL}{where} ORDER BY calls.id DESC LIMIT ?"
        return [rows.call_of(row) for row in await self._fetchall(sql, (*values, limit))]

    async def find_calls(self, prefix: str) -> list[CallRecord]:
        """Return up to ten calls whose public id starts with `prefix` (lower case hex) or whose call_id equals it."""
        sql = (
            f"{rows.SELECT_CALL} WHERE substr(calls.digest, 1, ?) = ? OR calls.call_id = ? "
            f"ORDER BY calls.id DESC LIMIT {_FOUND}"
        )
        return [rows.call_of(row) for row in await self._fetchall(sql, (len(prefix), prefix, prefix))]

    async def transitions(self, key: CallKey) -> list[TransitionRecord]:
        """Return the life of a call, oldest step first."""
        sql = f"{rows.SELECT_TRANSITION} WHERE {_BY_KEY} ORDER BY seq"
        return [rows.transition_of(key, row) for row in await self._fetchall(sql, _parts(key))]

    async def checkpoints(self, key: CallKey) -> dict[str, bytes]:
        """Return the named facts its attempts left."""
        sql = (
            "SELECT checkpoints.name, checkpoints.value FROM checkpoints JOIN calls ON calls.id = call "  # noqa: S608 - constant text
            f"WHERE {_BY_KEY} ORDER BY checkpoints.at, checkpoints.name"
        )
        return dict(await self._fetchall(sql, _parts(key)))

    async def late(self, key: CallKey) -> list[LateRecord]:
        """Return what its handler returned too late."""
        sql = f"{rows.SELECT_LATE} WHERE {_BY_KEY} ORDER BY late.id"
        return [rows.late_of(key, row) for row in await self._fetchall(sql, _parts(key))]

    async def approval(self, key: CallKey) -> ApprovalRecord | None:
        """Return what is known of a call's approval, or None when none was asked for."""
        found = await self._fetchall(f"{rows.SELECT_APPROVAL} WHERE {_BY_KEY}", _parts(key))
        return rows.approval_of(key, found[0]) if found else None

    async def session(
        self, *, local_id: str | None = None, session_id: str | None = None, key: str | None = None
    ) -> SessionRecord | None:
        """Return one session by exactly one of its names, or None.

        Raises:
            ValueError: no name was given, or several.
        """
        column, value = one_name(local_id=local_id, session_id=session_id, key=key)
        found = await self._fetchall(f"{rows.SELECT_SESSION} WHERE {column} = ?", (value,))
        return rows.session_of(found[0]) if found else None

    async def sessions(self, *, limit: int = 1000) -> list[SessionRecord]:
        """Return session rows, newest first."""
        found = await self._fetchall(f"{rows.SELECT_SESSION} ORDER BY id DESC LIMIT ?", (limit,))
        return [rows.session_of(row) for row in found]

    async def unfinished_sessions(self) -> list[SessionRecord]:
        """Return the sessions to follow at start-up: state open, and an open call, an input not done, or active."""
        calls = f"SELECT session_id FROM calls WHERE {_OPEN}"  # noqa: S608 - constant text
        inputs = f"SELECT session_id FROM inputs WHERE {_OPEN_INPUT}"  # noqa: S608 - constant text
        left = f"active = 1 OR session_id IN ({calls}) OR session_id IN ({inputs})"
        sql = f"{rows.SELECT_SESSION} WHERE state = 'open' AND ({left}) ORDER BY id"
        return [rows.session_of(row) for row in await self._fetchall(sql)]

    async def open_session_ids(self, *, origin: SessionOrigin, after: str = "", limit: int = 1000) -> list[str]:
        """Return ids of sessions in state open, in their order, those that are greater than `after` (a cursor)."""
        sql = (
            "SELECT session_id FROM sessions WHERE session_id > ? AND state = 'open' AND origin = ? "
            "ORDER BY session_id LIMIT ?"
        )
        return [session_id for (session_id,) in await self._fetchall(sql, (after, origin, limit))]

    async def open_inputs(self, session_id: str) -> list[InputRecord]:
        """Return the session's inputs that are neither done nor refused, in order of seq."""
        sql = f"{rows.SELECT_INPUT} WHERE session_id = ? AND {_OPEN_INPUT} ORDER BY seq"
        return [rows.input_of(row) for row in await self._fetchall(sql, (session_id,))]

    async def inputs(self, session_id: str) -> list[InputRecord]:
        """Return all inputs of a session, in order of seq."""
        sql = f"{rows.SELECT_INPUT} WHERE session_id = ? ORDER BY seq"
        return [rows.input_of(row) for row in await self._fetchall(sql, (session_id,))]


def one_name(**names: str | None) -> tuple[str, str]:
    """Return the one name that was given.

    Raises:
        ValueError: none was given, or several.
    """
    given = [(name, value) for name, value in names.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(names)}")
    return given[0]


def _parts(key: CallKey) -> tuple[str, str, str]:
    return key.session_id, key.turn_id, key.call_id


def _marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)
