"""The durable outbox of a session: inputs are stored, posted in order, and matched with the turns they cause."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.actors.live import LiveSession, Root
from answerback.actors.messages import FetchRefused, ReadAgain
from answerback.actors.turns import Match, match_input, newest_root
from answerback.errors import ApiError
from answerback.model import InputRecord
from answerback.store.base import Receipt, Store, UpdateInput, UpdateSession
from answerback.wire import inputs
from answerback.wire.records import Turn

logger = logging.getLogger("answerback.outbox")

RETRIED = frozenset({408, 409, 425, 429})
"""Statuses of an input that pass: 409 is also "the initial input is still pending" and "the session is busy"."""
LOOK_AGAIN = 0.25
"""Seconds between looks for the turn of an accepted input; the service admits inputs asynchronously."""


class Outbox:
    """Posts one session's inputs. The order is the order of `send`; the next waits for the one before it."""

    def __init__(
        self,
        live: LiveSession,
        *,
        store: Store,
        api: AgentsApi,
        gate: anyio.CapacityLimiter,
        rng: random.Random,
        now: Callable[[], int],
    ) -> None:
        self._live = live
        self._store = store
        self._api = api
        self._gate = gate
        self._rng = rng
        self._now = now
        self._backoff = Backoff(initial=0.1, maximum=10.0)
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return f"<Outbox {self._live.session_id} {len(self._live.inputs or ())} inputs>"

    def wake(self) -> None:
        """Look for new inputs."""
        self._changed.set()

    async def run(self) -> None:
        """Post until cancelled."""
        if self._live.inputs is None:
            await self._load()
        while True:
            self._changed = anyio.Event()
            known = self._live.inputs or {}
            waiting = [entry for entry in known.values() if entry.state in {"queued", "sent"}]
            if not waiting:
                await self._changed.wait()
                continue
            await self._deliver(waiting[0])

    async def _deliver(self, entry: InputRecord) -> None:
        """Post one input until it has a definite answer."""
        tries = 0
        while True:
            try:
                if entry.state == "queued":
                    entry = await self._note_baseline(entry)
                async with self._gate:
                    await self._api.post(
                        self._live.session_id,
                        inputs.body([entry.element]),
                        key=inputs.input_key(entry.session_id, entry.key),
                    )
            except ApiError as error:
                tries += 1
                if await self._refused(entry, error):
                    return
                await anyio.sleep(error.retry_after or self._backoff.pause(tries, self._rng))
                continue
            # Not waited for: until it is stored, a restart posts the same bytes under the same key again.
            self._update(entry, state="accepted")
            self._live.mailbox.tell(ReadAgain("an input was accepted"))
            return

    async def _note_baseline(self, entry: InputRecord) -> InputRecord:
        """Remember the newest root turn before the input can cause one; stored before the POST."""
        newest = newest_root(await self._api.turns(self._live.session_id))
        receipt, changed = self._update(
            entry,
            lazy=False,
            state="sent",
            baseline_turn=newest.id if newest else None,
            baseline_open=newest is not None and not newest.over,
        )
        await receipt.committed()
        return changed

    async def _refused(self, entry: InputRecord, error: ApiError) -> bool:
        """Take a refusal; return whether it is final."""
        status = error.status
        logger.info("input not accepted: HTTP %s", status, extra={"session_id": entry.session_id})
        if status is None or status >= 500 or status in RETRIED:
            if status == 409:
                self._live.mailbox.tell(ReadAgain("an input was answered with 409"))
            return False
        if status in {401, 403, 404}:
            self._live.mailbox.tell(FetchRefused(status))
            return False
        self._update(entry, state="refused", reason=f"HTTP {status} {error.code or ''}".strip())
        self._live.notify()
        return True

    async def _load(self) -> None:
        """Read the inputs an earlier process, or actor, left: the open ones and the newest."""
        self._live.loaded(await self._store.inputs(self._live.session_id))
        # Whoever waits, and the match with turns, went without them until now.
        if self._live.awaiting:
            self._live.mailbox.tell(ReadAgain("open inputs were read"))
        self._live.notify()

    def _update(self, entry: InputRecord, *, lazy: bool = True, **changes: Any) -> tuple[Receipt, InputRecord]:
        changes["updated_at"] = self._now()
        statement = UpdateInput(session_id=entry.session_id, key=entry.key, changes=changes)
        receipt = self._store.write(statement, lazy=lazy)
        changed = msgspec.structs.replace(entry, **changes)
        self._live.note(changed)
        return receipt, changed

    async def match_turns(self) -> float | None:
        """Find the turns of the accepted inputs; close those whose turn is over while the session is idle.

        Returns the seconds after which to look again when nothing on the stream will announce the missing turn.

        Raises:
            ApiError: the server did not tell; the caller tries again.
        """
        accepted = [entry for entry in (self._live.inputs or {}).values() if entry.state == "accepted"]
        if not accepted:
            self._note_active(not self._live.state.idle)
            return None
        turns = await self._api.turns(self._live.session_id)
        texts = await self._steered_texts(accepted, turns)
        claimed = {e.turn_id: e.key for e in (self._live.inputs or {}).values() if e.turn_id is not None}
        undecided = False
        for entry in accepted:
            match = match_input(entry, turns, texts, claimed)
            if match is None:
                undecided = True
                continue
            claimed.setdefault(match.turn_id, entry.key)
            self._live.turns[match.turn_id] = next(turn for turn in turns if turn.id == match.turn_id)
            self._matched(entry, match)
            undecided = undecided or not match.over
        self._note_active(undecided or not self._live.state.idle)
        if self._live.state.idle and not undecided:
            newest = newest_root(turns)
            self._live.idle_root = Root(newest.id if newest is not None else None)
        # Idle, and yet no turn to be seen: the input is being admitted.
        return LOOK_AGAIN if undecided and self._live.state.idle else None

    def _matched(self, entry: InputRecord, match: Match) -> None:
        changes: dict[str, Any] = {}
        if entry.turn_id is None:
            changes["turn_id"] = match.turn_id
        if match.over and self._live.state.idle:
            changes["state"] = "done"
        if changes:
            self._update(entry, **changes)

    def _note_active(self, active: bool) -> None:
        """Keep whether a restart has something to follow here."""
        record = self._live.record
        if record.active != active:
            changes = {"active": active, "updated_at": self._now()}
            self._store.write(UpdateSession(local_id=record.local_id, changes=changes), lazy=True)
            self._live.record = msgspec.structs.replace(record, **changes)

    async def _steered_texts(self, accepted: list[InputRecord], turns: list[Turn]) -> dict[str, list[str]]:
        """Read the user items of the turns that accepted inputs may have steered.

        Those are an open baseline, and the turn of an earlier input that was not yet to be seen at the baseline.
        """
        waiting = [entry for entry in accepted if entry.turn_id is None]
        steered = {entry.baseline_turn for entry in waiting if entry.baseline_open}
        if waiting:
            steered |= {entry.turn_id for entry in (self._live.inputs or {}).values()}
        texts: dict[str, list[str]] = {}
        for turn_id in [turn.id for turn in turns if turn.id in steered]:
            items = await self._api.turn_items(self._live.session_id, turn_id)
            texts[turn_id] = [item.text for item in items if item.type == "message" and item.role == "user"]
        return texts
