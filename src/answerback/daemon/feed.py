"""What happens in a daemon, live, for `answerback tail`: moves of calls and events of sessions, never a value."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from answerback.daemon.open_calls import SHOWN_ID
from answerback.daemon.output import stamp
from answerback.model import CallRecord, Unobserved

BUFFER = 1024
"""Entries a reader may lag behind; beyond that it loses new ones, and nothing waits for it."""

Entry = dict[str, Any]


class Feed(Unobserved):
    """An observer whose readers get one entry for everything it is told."""

    def __init__(self) -> None:
        self._readers: set[MemoryObjectSendStream[Entry]] = set()

    def __repr__(self) -> str:
        return f"<Feed {len(self._readers)} readers>"

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Tell of a call's move."""
        if before is not None and before.state is after.state and before.submit_status == after.submit_status:
            return
        self._tell(
            type="call",
            id=after.public_id[:SHOWN_ID],
            tool=after.name,
            state=after.state.value,
            outcome=after.outcome_kind,
            attempt=after.attempt,
            session_id=after.key.session_id,
            turn_id=after.key.turn_id,
            call_id=after.key.call_id,
            reason=after.reason,
        )

    def crashed(self, session_id: str, reason: str) -> None:
        """Tell of an actor's crash."""
        self._tell(type="crash", session_id=session_id, reason=reason)

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        """Tell of an event's kind; deltas are left out."""
        del over
        if not kind.endswith(".delta"):
            self._tell(type="event", session_id=session_id, turn_id=turn_id, kind=kind)

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[MemoryObjectReceiveStream[Entry]]:
        """Yield a stream of the entries from now on."""
        send, receive = anyio.create_memory_object_stream[Entry](BUFFER)
        self._readers.add(send)
        try:
            yield receive
        finally:
            self._readers.discard(send)
            send.close()
            receive.close()

    def close(self) -> None:
        """End every reader's stream."""
        for send in self._readers:
            send.close()

    def _tell(self, **entry: Any) -> None:
        if not self._readers:
            return
        entry = {"at": stamp(time.time_ns() // 1000), **entry}
        for send in self._readers:
            try:
                send.send_nowait(entry)
            except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
                # A reader that lags or has left loses the entry: nobody here waits for it.
                continue
