"""Look after the sessions that do not live here: a passivated session whose turn goes on is brought back.

They have no stream and no task. Sessions we created carry the store's id in their metadata, so one filtered list shows
them all, 100 in a request and at most `scan.PAGES` requests a round: of up to 1,000 sessions a call is seen within one
`poll_interval`, of more within as many intervals as there are thousands. Attached sessions carry no mark of ours and
are read one by one, in turn, `READS` a round. Both only say whom to wake; what is to be done is read then.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import anyio

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.actors.opening import STORE_KEY
from answerback.actors.roster import Roster
from answerback.actors.scan import SessionScan
from answerback.actors.settings import ActorSettings
from answerback.errors import ApiError
from answerback.model import SessionOrigin
from answerback.store.base import Store
from answerback.wire.records import Session

logger = logging.getLogger("answerback.rounds")

READS = 50
"""Sessions read one by one in one round."""
NO_SUCH_LIST = frozenset({400, 404, 405, 501})
"""Answers of a server that cannot filter its list: then the sessions it would show are read one by one, too."""
IDS = 1000
"""Ids read from the store at once."""


class Rounds:
    """Goes round the passivated sessions every `poll_interval` seconds."""

    def __init__(
        self,
        *,
        api: AgentsApi,
        store: Store,
        roster: Roster,
        wake: Callable[[str, str], None],
        settings: ActorSettings,
        rng: random.Random,
    ) -> None:
        self.done = 0
        self._api = api
        self._store = store
        self._roster = roster
        self._wake = wake
        self._settings = settings
        self._rng = rng
        self._scan: SessionScan | None = None
        self._after: dict[SessionOrigin, str] = {}
        self._backoff = Backoff(maximum=max(settings.poll_interval, 30.0))

    def __repr__(self) -> str:
        return f"<Rounds {self.done} done>"

    async def run(self) -> None:
        """Go round until cancelled; the first round finds what moved while no process was there."""
        failures = 0
        while True:
            pause = self._settings.poll_interval
            try:
                await self._round()
            except ApiError as error:
                failures += 1
                log = logger.warning if failures == 1 else logger.info
                log("passivated sessions could not be looked after: HTTP %s; trying again", error.status)
                pause = error.retry_after or self._backoff.pause(failures, self._rng)
            else:
                failures = 0
                self.done += 1
            await anyio.sleep(pause)

    async def _round(self) -> None:
        before = self._roster.changes
        opened, attached = await self._count("opened"), await self._count("attached")
        if self._roster.changes == before:
            # Else some were counted before they came or went, and what was carried on is nearer to the truth.
            self._roster.passivated = opened + attached
        failure: ApiError | None = None
        if opened:
            try:
                await self._list_opened()
            except ApiError as error:
                failure = error
                if error.status in NO_SUCH_LIST:
                    await self._read_in_turn("opened")
        if attached:
            await self._read_in_turn("attached")
        if failure is not None:
            raise failure

    async def _count(self, origin: SessionOrigin) -> int:
        """Count the open sessions of the store that do not live here."""
        count, after = 0, ""
        while True:
            ids = await self._store.open_session_ids(origin=origin, after=after, limit=IDS)
            count += sum(session_id not in self._roster.live for session_id in ids)
            if len(ids) < IDS:
                return count
            after = ids[-1]

    async def _list_opened(self) -> None:
        if self._scan is None:
            self._scan = SessionScan(self._api, metadata={STORE_KEY: self._store.info.store_id})
        for session in await self._scan.read(moves):
            if session.id not in self._roster.live:
                self._wake(session.id, "listed as moving")

    async def _read_in_turn(self, origin: SessionOrigin) -> None:
        for session_id in await self._next(origin):
            try:
                moved = moves(await self._api.retrieve(session_id))
            except ApiError as error:
                if error.status != 404:
                    raise
                # Whoever follows it draws the conclusion, in one place.
                moved = True
            self._after[origin] = session_id
            if moved:
                self._wake(session_id, "it moved while nobody looked")

    async def _next(self, origin: SessionOrigin) -> list[str]:
        """Return whose turn it is, from where the last round ended; each session at most once a round."""
        chosen: list[str] = []
        start = after = self._after.get(origin, "")
        wrapped = False
        while len(chosen) < READS:
            ids = await self._store.open_session_ids(origin=origin, after=after, limit=IDS)
            if wrapped:
                ids = [session_id for session_id in ids if session_id <= start]
            chosen += [session_id for session_id in ids if session_id not in self._roster.live]
            if len(ids) == IDS:
                after = ids[-1]
            elif wrapped or not start:
                break
            else:
                after, wrapped = "", True
        return chosen[:READS]


def moves(session: Session) -> bool:
    """Whether somebody has to look at a session: a turn is open, something is required, or it failed."""
    return session.status != "idle" or bool(session.required_actions)
