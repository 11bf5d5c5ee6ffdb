"""Adopt sessions this store did not create: those that match a filter, and no others.

The rules, in the order they are asked:
- A session of the store is never adopted again: one that was detached, paused or set aside stays so, one that was
  passivated is woken when it moves.
- A session that carries the key of an answerback that is not in this store belongs to another worker.
- Any other match is adopted when it moves, or while it is fresh; until then it costs nothing.
Nothing is written to an adopted session, so two workers with the same filter would both answer: one filter, one worker.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable
from typing import Literal

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.actors.opening import METADATA_KEY
from answerback.actors.roster import Roster
from answerback.actors.rounds import moves
from answerback.actors.scan import SessionScan
from answerback.actors.settings import ActorSettings
from answerback.errors import ApiError, ConfigurationError
from answerback.model import SessionRecord
from answerback.store.base import PutSession, Store
from answerback.wire.records import Session

logger = logging.getLogger("answerback.discovery")


class Discover(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a runtime adopts. At least one condition is needed, and all must hold.

    Attributes:
        metadata: pairs the session's metadata must have, as the API filters them (at most 16).
        agent_id: the saved agent the session must run.
        interval: seconds between scans; None is the runtime's `poll_interval`.
        pending: what to think of calls that are pending at adoption: "run" starts them, "verify" treats them as
            interrupted, because another client may have started them.

    Raises:
        ConfigurationError: nothing is filtered, or a value cannot be used.
    """

    metadata: dict[str, str] = {}
    agent_id: str | None = None
    interval: float | None = None
    pending: Literal["run", "verify"] = "run"

    def __post_init__(self) -> None:
        if not self.metadata and not self.agent_id:
            raise ConfigurationError(
                'Discover needs a filter, such as metadata={"app": "acme"}: without one it would adopt every session '
                "of the project, those of other workers included"
            )
        if len(self.metadata) > 16:
            raise ConfigurationError(f"Discover can filter by 16 pairs of metadata, not {len(self.metadata)}")
        for name, value in self.metadata.items():
            if not isinstance(value, str) or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
                raise ConfigurationError(f"Discover filters metadata by text; the value of {name!r} is none")
        if self.interval is not None and not self.interval > 0:
            raise ConfigurationError(f"Discover(interval=) must be more than 0 seconds, not {self.interval}")
        if self.pending not in {"run", "verify"}:
            raise ConfigurationError(f'Discover(pending=) is "run" or "verify", not {self.pending!r}')


class Discovery:
    """Scans one filtered list and adopts what it finds.

    Attributes:
        scans: scans that were answered.
        adopted: sessions adopted by this process.
        failures: scans in a row that were not answered; 0 when all is well.
    """

    def __init__(
        self,
        discover: Discover,
        *,
        api: AgentsApi,
        store: Store,
        roster: Roster,
        wake: Callable[[str, str], None],
        settings: ActorSettings,
        now: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self.discover = discover
        self.scans = 0
        self.adopted = 0
        self.failures = 0
        self._store = store
        self._roster = roster
        self._wake = wake
        self._interval = discover.interval or settings.poll_interval
        self._fresh = settings.passivate_after
        self._now = now
        self._rng = rng
        self._scan = SessionScan(api, metadata=discover.metadata, agent_id=discover.agent_id)
        self._backoff = Backoff(maximum=max(self._interval, 30.0))

    def __repr__(self) -> str:
        return f"<Discovery {self.scans} scans, {self.adopted} adopted, {self.failures} failures>"

    async def run(self) -> None:
        """Scan until cancelled. A list that cannot be read is asked again later, however often."""
        while True:
            pause = self._interval
            try:
                found = await self._scan.read(self._interesting)
            except ApiError as error:
                self.failures += 1
                log = logger.error if self.failures == 1 else logger.info
                log("sessions could not be listed: HTTP %s; trying again", error.status)
                pause = error.retry_after or self._backoff.pause(self.failures, self._rng)
            else:
                self.failures = 0
                await self._take(found)
                self.scans += 1
            await anyio.sleep(pause)

    def _interesting(self, session: Session) -> bool:
        """Whether a listed session is at work, or was so lately that it may soon be again."""
        if not session.id or session.status == "failed" or session.id in self._roster.live:
            return False
        age = self._now() / 1e6 - (session.last_active_at or 0.0)
        return moves(session) or age < self._fresh

    async def _take(self, found: list[Session]) -> None:
        strangers: list[Session] = []
        for session in found:
            known = await self._store.session(session_id=session.id)
            if known is None:
                # Created by an answerback: its own store, or our `open` that is under way, sees to it.
                if METADATA_KEY not in (session.metadata or {}):
                    strangers.append(session)
            elif known.state == "open" and moves(session):
                self._wake(session.id, "discovered")
        await self._adopt(strangers)

    async def _adopt(self, sessions: list[Session]) -> None:
        """Store all of them in one commit, then follow those that are ours by it."""
        now = self._now()
        records = [
            SessionRecord(
                local_id=f"ab_{secrets.token_hex(12)}",
                session_id=session.id,
                origin="attached",
                pending=self.discover.pending,
                active=True,
                created_at=now,
                updated_at=now,
            )
            for session in sessions
        ]
        if not records:
            return
        counts = await self._store.write(*map(PutSession, records)).committed()
        for record, count in zip(records, counts, strict=True):
            # 0: somebody attached it in this moment.
            if count == 1:
                self.adopted += 1
                self._roster.follow(record)
                logger.info("adopted a session", extra={"session_id": record.session_id})
