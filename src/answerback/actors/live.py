"""What one followed session has in this process, apart from its actor: it outlives the actor's restarts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Self

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from answerback.actors.journal import Journal
from answerback.actors.mailbox import Mailbox
from answerback.actors.session_state import SessionState
from answerback.errors import SessionError, SessionFailedError, SessionGoneError, SessionQuarantinedError
from answerback.model import CallKey, InputRecord, SessionRecord
from answerback.wire.events import Event
from answerback.wire.records import Turn

SUBSCRIBER_BUFFER = 1024
"""Events a local subscriber may lag behind; beyond that it loses the oldest it has not read, never the actor."""

CLOSED_INPUTS = frozenset({"done", "refused"})


class Root(msgspec.Struct, frozen=True):
    """The newest root turn of a session, which has ended; `turn_id` is None when it never had one."""

    turn_id: str | None


class LiveSession:
    """A followed session: its record, journal, mailbox, state, subscribers, and the event that tells of changes."""

    def __init__(self, record: SessionRecord, *, journal: Journal, state: SessionState) -> None:
        assert record.session_id is not None
        self.session_id: str = record.session_id
        self.record = record
        self.journal = journal
        self.state = state
        self.mailbox = Mailbox()
        self.changed = anyio.Event()
        self.crashes = 0
        self.version = 0
        self.first_asked: frozenset[CallKey] = frozenset()
        """Calls of the first list, when another client may have started them."""
        self.inputs: dict[str, InputRecord] | None = None
        """The open inputs in order of sending, and the newest one in any state; None before they were read."""
        self.idle_root: Root | None = None
        """The newest root turn while the session rests, so that the next input need not ask; None: not known."""
        self.turns: dict[str, Turn] = {}
        """The turns of those inputs, as they were last read."""
        self.moved_at = anyio.current_time()
        """When (seconds of the event loop's clock) it was last seen to have, or to be, work for anybody."""
        self._early: list[InputRecord] = []
        self._holders = 0
        self._subscribers: list[tuple[MemoryObjectSendStream[Event], MemoryObjectReceiveStream[Event]]] = []

    def __repr__(self) -> str:
        return f"<LiveSession {self.session_id} {self.record.state}, {self.state.status or 'unread'}>"

    def notify(self) -> None:
        """Wake everybody who waits for this session to change."""
        self.version += 1
        self.changed.set()
        self.changed = anyio.Event()

    def ended(self) -> SessionError | None:
        """Return why the session cannot be followed, as the error a waiter gets, or None."""
        reason = self.record.reason or self.record.state
        match self.record.state:
            case "gone":
                return SessionGoneError(f"session {self.session_id} is gone: {reason}", session_id=self.session_id)
            case "failed":
                return SessionFailedError(
                    f"session {self.session_id} failed: {self.state.error or reason}",
                    session_id=self.session_id,
                    error=self.state.error,
                )
            case "quarantined":
                return SessionQuarantinedError(
                    f"session {self.session_id} is set aside: {reason}", session_id=self.session_id
                )
            case "detached":
                return SessionError(
                    f"session {self.session_id} was detached; attach() it again", session_id=self.session_id
                )
            case _:
                return None

    def loaded(self, stored: Sequence[InputRecord]) -> None:
        """Take the inputs that were read from the store, and those that were stored while they were being read."""
        self.inputs = {entry.key: entry for entry in stored}
        for entry in self._early:
            self.inputs.setdefault(entry.key, entry)
        self._early.clear()
        if self.inputs:
            self.note(next(reversed(self.inputs.values())))

    def queue(self, record: InputRecord) -> None:
        """Note a stored input, so that whoever waits counts it from now on."""
        if self.inputs is None:
            self._early.append(record)
        else:
            self.inputs.setdefault(record.key, record)

    def note(self, record: InputRecord) -> None:
        """Note a change of an input; once all are closed, forget them but the newest.

        While one is open the closed ones tell it which turns are taken.
        """
        assert self.inputs is not None
        self.inputs[record.key] = record
        if not self.awaiting:
            newest = next(reversed(self.inputs))
            self.inputs = {newest: self.inputs[newest]}
        kept = {entry.turn_id for entry in self.inputs.values()}
        self.turns = {turn_id: turn for turn_id, turn in self.turns.items() if turn_id in kept}

    @property
    def newest_input(self) -> InputRecord | None:
        """The input that was sent last, or None when none is known."""
        return self.inputs[next(reversed(self.inputs))] if self.inputs else None

    @property
    def awaiting(self) -> bool:
        """Whether an input is not answered yet, or the inputs were not read yet."""
        return self.inputs is None or any(entry.state not in CLOSED_INPUTS for entry in self.inputs.values())

    @property
    def other_actions(self) -> frozenset[str]:
        """Kinds of required actions that are not function calls: they wait for the application."""
        return self.state.other_actions

    @contextmanager
    def held(self) -> Generator[Self]:
        """Keep the session from being passivated for the length of a block."""
        self._holders += 1
        try:
            yield self
        finally:
            self._holders -= 1
            self.moved_at = anyio.current_time()

    @property
    def in_use(self) -> bool:
        """Whether somebody in this process waits for the session or listens to it."""
        return bool(self._holders or self._subscribers)

    @property
    def quiet(self) -> bool:
        """Whether nothing is open and a retrieve said that the session is idle: nothing is lost by passivating it."""
        return (
            self.record.state == "open"
            and self.state.idle
            and not self.record.active
            and not (self.state.asked or self.other_actions or self.journal.entries)
            and not (self.awaiting or self.in_use)
        )

    @property
    def unsent(self) -> int:
        """How many stored results a followed session's server does not have yet."""
        if self.record.state != "open":
            return 0
        return sum(
            entry.record.payload is not None and entry.record.submit_status != "accepted"
            for entry in self.journal.entries.values()
        )

    @property
    def watched(self) -> bool:
        """Whether anybody reads this session's events."""
        return bool(self._subscribers)

    def publish(self, event: Event) -> None:
        """Hand an event to the subscribers; one that does not read loses its oldest, nobody waits for it."""
        for send, receive in self._subscribers:
            try:
                send.send_nowait(event)
            except anyio.WouldBlock:
                receive.receive_nowait()
                send.send_nowait(event)
            except anyio.ClosedResourceError:
                # The session has ended; a handler that still tells its progress is nobody's fault.
                continue

    @asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[MemoryObjectReceiveStream[Event]]:
        """Yield a stream of the session's events from now on."""
        send, receive = anyio.create_memory_object_stream[Event](SUBSCRIBER_BUFFER)
        # A second handle drops the oldest event of a full buffer without touching the reader's.
        entry = (send, receive.clone())
        self._subscribers.append(entry)
        try:
            yield receive
        finally:
            self._subscribers.remove(entry)
            self.moved_at = anyio.current_time()
            for stream in (send, receive, entry[1]):
                stream.close()

    def close_subscribers(self) -> None:
        """End every subscription: nothing more will come."""
        for send, _ in self._subscribers:
            send.close()
