"""Which sessions live in this process. All others are rows of the store: a session at rest has no place in memory.

A session lives from the moment somebody needs it (a start-up that finds work, `open`, `attach`, a message, a wake)
until it has been idle for a while. What is known of it then is in the store and on the server, so any number of
sessions may have been seen; `awake` brings one back from its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from answerback.actors.journal import Journal
from answerback.actors.live import LiveSession
from answerback.actors.session_state import SessionState
from answerback.handlers.arguments import canonical_hash
from answerback.handlers.secrets import Secrecy
from answerback.model import Observer, SessionRecord
from answerback.store.base import Store, UpdateSession

ENDED_KEPT = 64
"""Sessions that are gone or failed stay listed until so many later ones ended; the rows say it for ever."""
ENDED = frozenset({"gone", "failed", "detached"})


class Roster:
    """The live sessions by id.

    Args:
        store: where the others are.
        observer: told of every move of a call.
        secrecy: how their journals store what is secret.
        now: wall clock, microseconds.
        start: starts the actor of a session, if none runs.
        stop: stops the actor of a session.
        busy: whether calls of a session are still running here.
    """

    def __init__(
        self,
        *,
        store: Store,
        observer: Observer,
        secrecy: Secrecy,
        now: Callable[[], int],
        start: Callable[[LiveSession], None],
        stop: Callable[[str], None],
        busy: Callable[[str], bool],
    ) -> None:
        self.live: dict[str, LiveSession] = {}
        self.passivated = 0
        """Open sessions of the store that do not live here. Counted now and then, carried on in between."""
        self.changes = 0
        """How often a session came to life here or was passivated."""
        self._store = store
        self._observer = observer
        self._secrecy = secrecy
        self._now = now
        self._start = start
        self._stop = stop
        self._busy = busy
        self._ended: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Roster {len(self.live)} live, {self.passivated} passivated>"

    def follow(self, record: SessionRecord) -> LiveSession:
        """Let a session live (again), with an actor if it is open."""
        assert record.session_id is not None
        live = self.live.get(record.session_id)
        if live is None:
            journal = Journal(
                record.session_id, self._store, now=self._now, observer=self._observer, secrecy=self._secrecy
            )
            state = SessionState(record.session_id, hash_arguments=canonical_hash)
            live = LiveSession(record, journal=journal, state=state)
            if record.state in ENDED:
                # Only to say so: nobody is there to change it.
                return live
            self.live[record.session_id] = live
            self.changes += 1
        if record.state == "open":
            if live.record.state != "open":
                live.record = record
            self._ended.pop(record.session_id, None)
            self._start(live)
        return live

    async def awake(self, session_id: str) -> LiveSession | None:
        """Return a session, bringing it back from its row; None when the store has none."""
        live = self.live.get(session_id)
        if live is None:
            await self._store.flush()
            record = await self._store.session(session_id=session_id)
            if record is None:
                return None
            if session_id not in self.live and record.state == "open":
                self.passivated = max(0, self.passivated - 1)
            live = self.follow(record)
        return live

    def passivate(self, live: LiveSession) -> None:
        """Forget a session that is quiet, and end its actor."""
        if self.live.get(live.session_id) is live:
            del self.live[live.session_id]
            self.passivated += 1
            self.changes += 1
        self._stop(live.session_id)

    async def put_aside(self, session_id: str, state: str, reason: str | None) -> bool:
        """Stop following a session (`detached`, `paused`); return whether the store has it as open or set aside.

        Its running calls go on and store what comes of them; the row keeps the state across restarts.
        """
        live = self.live.get(session_id)
        record = live.record if live is not None else await self._store.session(session_id=session_id)
        if record is None or record.state in ENDED:
            return False
        changes: dict[str, Any] = {"state": state, "reason": reason, "updated_at": self._now()}
        self._stop(session_id)
        await self._store.write(UpdateSession(local_id=record.local_id, changes=changes)).committed()
        # It may have come to life while this was stored.
        live = self.live.get(session_id)
        if live is not None:
            self._stop(session_id)
            live.record = msgspec.structs.replace(live.record, **changes)
            live.notify()
            self.ended(live)
        elif record.state == "open":
            self.passivated = max(0, self.passivated - 1)
        return True

    async def bring_back(self, session_id: str) -> bool:
        """Follow a session that was paused or set aside; return False when it is neither, nor followed."""
        live = self.live.get(session_id)
        record = live.record if live is not None else await self._store.session(session_id=session_id)
        if record is None or record.state in ENDED:
            return False
        if record.state != "open":
            changes: dict[str, Any] = {"state": "open", "reason": None, "active": True, "updated_at": self._now()}
            await self._store.write(UpdateSession(local_id=record.local_id, changes=changes)).committed()
            record = msgspec.structs.replace(record, **changes)
        self.follow(record)
        return True

    def ended(self, live: LiveSession) -> None:
        """Note that a session's actor ended for good, and forget those that ended longest ago."""
        if live.record.state in ENDED and self.live.get(live.session_id) is live:
            self._ended.pop(live.session_id, None)
            self._ended[live.session_id] = None
        spare = len(self._ended) - ENDED_KEPT
        for position, session_id in enumerate(list(self._ended)):
            other = self.live.get(session_id)
            detached = other is not None and other.record.state == "detached"
            # A running call still writes through the session's journal, and a waiter is to learn how it ended.
            if (position < spare or detached) and not (self._busy(session_id) or (other and other.in_use)):
                del self._ended[session_id]
                self.live.pop(session_id, None)
