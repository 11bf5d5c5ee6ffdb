"""The order of things: what changed is written first, then published, in the order it happened."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from answerback.harness.frames import Frame
from answerback.harness.input_log import InputLog
from answerback.harness.persistence import Documents, Row
from answerback.harness.records import Call, Item, KeyUse, LogEntry, Session, Turn
from answerback.harness.state import SessionState
from answerback.harness.stream import Hub

Storable = Session | Turn | Item | Call | KeyUse | LogEntry


class _Commit(msgspec.Struct):
    rows: list[Row]
    session_id: str
    frames: Sequence[Frame]
    done: anyio.Event


class Commits:
    """Write and publish. Without a file everything is published at once, and no task is involved."""

    def __init__(self, *, documents: Documents, hub: Hub, log: InputLog) -> None:
        self._documents = documents
        self._hub = hub
        self._log = log
        self._queue: list[_Commit] = []
        self._last: anyio.Event | None = None
        self._wake: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Commits {len(self._queue)} waiting>"

    def submit(self, session: SessionState | None, frames: Sequence[Frame], *, rows: Sequence[Row] = ()) -> None:
        """Queue what changed and the frames that tell of it; the order of calls is the order of everything."""
        records: list[Storable] = [] if session is None else list(session.take_touched())
        records += self._log.take_unwritten()
        session_id = "" if session is None else session.id
        if not self._documents.durable:
            self._hub.publish(session_id, frames)
            return
        encoded = [_row(record) for record in records]
        commit = _Commit([*encoded, *rows], session_id, frames, anyio.Event())
        self._queue.append(commit)
        self._last = commit.done
        if self._wake is not None:
            self._wake.set()

    async def settled(self) -> None:
        """Wait until everything submitted so far is written and published."""
        last = self._last
        if last is not None and not last.is_set():
            await last.wait()

    async def commit(self, session: SessionState, frames: Sequence[Frame]) -> None:
        """Submit and wait."""
        self.submit(session, frames)
        await self.settled()

    async def run(self) -> None:
        """Write what is queued, everything that waits in one transaction; runs until cancelled."""
        while True:
            if not self._queue:
                self._wake = anyio.Event()
                await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write and publish what is queued now."""
        batch, self._queue = self._queue, []
        rows = [row for commit in batch for row in commit.rows]
        if rows:
            await self._documents.write(rows)
        for commit in batch:
            self._hub.publish(commit.session_id, commit.frames)
            commit.done.set()


def _row(record: Storable) -> Row:
    data = msgspec.json.encode(record)
    match record:
        case Session():
            return ("session", record.id, data)
        case Turn():
            return ("turn", record.id, data)
        case Item():
            return ("item", record.id, data)
        case Call():
            return ("call", f"{record.turn_id}/{record.call_id}", data)
        case KeyUse():
            return ("key", f"{record.session_id}/{record.key}", data)
        case LogEntry():
            return ("log", f"{record.seq:012}", data)


def rows_of(session: SessionState) -> list[Row]:
    """List the rows that delete everything of a session."""
    records: list[Storable] = [session.record, *session.turns, *session.items]
    records += [*session.calls.values(), *session.keys.values()]
    return [(kind, identity, None) for kind, identity, _ in map(_row, records)]
