"""Send stored outcomes until the server has them: what to do with an answer is a pure table, the loop performs it.

202 means accepted, not durably done; what closes a call is `reconcile`, never an answer to a POST.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from enum import Enum, auto

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.actors.journal import Journal
from answerback.actors.mailbox import Mailbox
from answerback.actors.messages import FetchRefused, ReadAgain
from answerback.errors import ApiError
from answerback.model import CallKey, CallRecord, CallState, Observer, Unobserved
from answerback.wire import inputs

logger = logging.getLogger("answerback.submit")

MAX_MEMBERS = 64
"""Results in one POST; other implementations of the API refuse more."""
MAX_BYTES = 512 * 1024
"""Bytes of results in one POST of several; a larger result travels alone."""
RACE_PAUSES = (0.1, 0.3, 0.6)
"""Seconds between tries while the server may not have registered the call yet; the official client waits the same."""
REFUSED = frozenset({400, 413, 422})
"""Statuses that speak of the result itself. Others (a proxy's 407, a 402) must never cost a result its bytes."""
SENDABLE = frozenset({CallState.FINISHED, CallState.SUBMITTED})


class Answer(Enum):
    """What an answer to a POST of results means."""

    ACCEPTED = auto()
    SPLIT = auto()
    """A batch was refused for one of its members, nobody says which: resend one by one (repeats are accepted)."""
    WAIT = auto()
    """The same bytes under the same key again, later."""
    RACE = auto()
    """The call may not be registered yet, or may be over: a short wait, then a retrieve decides."""
    READ = auto()
    """Only a retrieve can tell; the same again, later, if the call is still required."""
    SUBSTITUTE = auto()
    """This result is definitely refused, whatever is repeated."""
    FORBIDDEN = auto()
    """Our credentials are refused: stop the session, keep the bytes."""


def interpret(error: ApiError | None, *, members: int, call_id: str) -> Answer:
    """Read an answer to a POST of `members` results (`call_id` names the only one when it is alone)."""
    if error is None:
        return Answer.ACCEPTED
    status = error.status
    if status is None or status in {408, 425, 429} or status >= 500 or error.retry_after is not None:
        return Answer.WAIT
    if status in {401, 403}:
        return Answer.FORBIDDEN
    if members > 1:
        return Answer.SPLIT
    if status == 400 and str(error) == f"Unknown pending tool call: {call_id}":
        return Answer.RACE
    return Answer.SUBSTITUTE if status in REFUSED else Answer.READ


class Batch(msgspec.Struct, frozen=True):
    """Results that travel together under one key until each has a definite answer."""

    members: tuple[CallKey, ...]
    tries: int = 0
    due: float = 0.0
    """When to send it (seconds of the actor's clock)."""


def take(ready: Iterable[CallRecord]) -> tuple[CallKey, ...]:
    """Choose what goes in the next POST: everything that is ready, within the bounds."""
    chosen: list[CallKey] = []
    size = 0
    for record in ready:
        length = len(record.payload or b"")
        if chosen and (len(chosen) >= MAX_MEMBERS or size + length > MAX_BYTES):
            break
        chosen.append(record.key)
        size += length
    return tuple(chosen)


class Submitter:
    """Sends the results of one session. While one POST is in flight the rest accumulates; no timer fills a batch."""

    def __init__(
        self,
        *,
        journal: Journal,
        api: AgentsApi,
        mailbox: Mailbox,
        gate: anyio.CapacityLimiter,
        rng: random.Random,
        now: Callable[[], int],
        refused_text: Callable[[CallRecord, ApiError], bytes],
        observer: Observer | None = None,
    ) -> None:
        self._journal = journal
        self._api = api
        self._mailbox = mailbox
        self._gate = gate
        self._rng = rng
        self._now = now
        self._refused_text = refused_text
        self._observer = observer or Unobserved()
        self._backoff = Backoff()
        self._ready: dict[CallKey, None] = {}
        self._batches: list[Batch] = []
        self._changed = anyio.Event()
        self.posts = 0

    def __repr__(self) -> str:
        return f"<Submitter {self._journal.session_id} {len(self._ready)} ready, {len(self._batches)} waiting>"

    @property
    def busy(self) -> bool:
        """Whether something is unsent."""
        return bool(self._ready or self._batches)

    def add(self, key: CallKey) -> None:
        """Send this call's stored bytes; adding it again while it waits changes nothing."""
        if key in self._ready or any(key in batch.members for batch in self._batches):
            return
        self._ready[key] = None
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            batch = self._next()
            if batch is None:
                await self._wait()
                continue
            await self._send(batch)

    def _next(self) -> Batch | None:
        """Return the batch to send now: a due one first, else what is ready, else None."""
        self._forget_settled()
        now = anyio.current_time()
        due = min(self._batches, key=lambda batch: batch.due, default=None)
        if due is not None and due.due <= now:
            return due
        records = [record for key in self._ready if (record := self._journal.get(key)) is not None]
        members = take(records)
        if not members:
            return None
        for key in members:
            del self._ready[key]
        batch = Batch(members)
        self._batches.append(batch)
        return batch

    def _forget_settled(self) -> None:
        """Drop what reconcile closed in the meantime; what is left of a batch gets a batch (and key) of its own."""
        self._ready = {key: None for key in self._ready if self._sendable(key)}
        kept: list[Batch] = []
        for batch in self._batches:
            members = tuple(key for key in batch.members if self._sendable(key))
            if members:
                kept.append(batch if members == batch.members else msgspec.structs.replace(batch, members=members))
        self._batches = kept

    def _sendable(self, key: CallKey) -> bool:
        record = self._journal.get(key)
        if record is None or record.state not in SENDABLE or record.submit_status == "accepted":
            return False
        return self._journal.revealed(record) is not None

    async def _wait(self) -> None:
        if self._changed.is_set():
            self._changed = anyio.Event()
        due = min((batch.due for batch in self._batches), default=None)
        if due is None:
            await self._changed.wait()
            return
        with anyio.move_on_at(due):
            await self._changed.wait()

    async def _send(self, batch: Batch) -> None:
        error: ApiError | None = None
        async with self._gate:
            if not all(self._sendable(member) for member in batch.members):
                # Closed while it waited for a connection: nothing is sent for it, the rest becomes a batch of its own.
                return
            records = [record for member in batch.members if (record := self._journal.get(member)) is not None]
            revealed = [row for record in records if (row := self._journal.revealed(record)) is not None]
            body = inputs.body(record.payload or b"" for record in revealed)
            key = inputs.results_key((r.key.session_id, r.key.turn_id, r.key.call_id, r.submit_epoch) for r in records)
            for record in records:
                self._journal.touch(record.key)
                if batch.tries:
                    self._observer.resent(record.key, "retry")
            self.posts += 1
            try:
                await self._api.post(self._journal.session_id, body, key=key)
            except ApiError as refused:
                error = refused
        self._batches.remove(batch)
        answer = interpret(error, members=len(batch.members), call_id=batch.members[0].call_id)
        if error is not None:
            logger.info(
                "results not accepted: HTTP %s, %s",
                error.status,
                answer.name.lower(),
                extra={"session_id": self._journal.session_id, "calls": [k.call_id for k in batch.members]},
            )
        await self._perform(answer, batch, error)

    async def _perform(self, answer: Answer, batch: Batch, error: ApiError | None) -> None:
        match answer:
            case Answer.ACCEPTED:
                self._mark(batch, "accepted")
            case Answer.SPLIT:
                self._batches += [Batch((member,)) for member in batch.members]
            case Answer.WAIT:
                self._mark(batch, "ambiguous")
                # `Retry-After: 0` says nothing; our own pause keeps it from becoming a storm.
                self._again(batch, (error.retry_after or None) if error else None)
            case Answer.RACE if batch.tries < len(RACE_PAUSES):
                self._again(batch, RACE_PAUSES[batch.tries])
            case Answer.READ if batch.tries >= len(RACE_PAUSES) and self._unasked(batch):
                self._abandon(batch)
            case Answer.RACE | Answer.READ:
                self._mailbox.tell(ReadAgain(f"a result was answered with {error.status if error else None}"))
                # What follows the short race is a pause of its own kind: a call that is still listed is soon taken.
                rounds = max(1, batch.tries - len(RACE_PAUSES) + 1)
                self._again(batch, self._backoff.pause(rounds, self._rng))
            case Answer.SUBSTITUTE:
                await self._substitute(batch, error)
            case Answer.FORBIDDEN:
                self._mailbox.tell(FetchRefused(error.status or 401 if error else 401))
                self._again(batch, self._backoff.maximum)

    def _unasked(self, batch: Batch) -> bool:
        """Whether this is the result of an `async` function, which no list of required actions may ever name."""
        record = self._journal.get(batch.members[0])
        return record is not None and record.is_async

    def _abandon(self, batch: Batch) -> None:
        """Close an `async` result that the server keeps refusing: its turn is over and nobody can be asked."""
        for key in batch.members:
            self._journal.move(key, CallState.OBSOLETE, reason="the server refuses it: its turn is over")

    def _mark(self, batch: Batch, status: str) -> None:
        now = self._now()
        for key in batch.members:
            record = self._journal.get(key)
            # The output item may have been seen while the POST was in flight: then the call is closed already.
            if record is not None and record.state in SENDABLE:
                self._journal.move(key, CallState.SUBMITTED, submit_status=status, submitted_at=now)

    def _again(self, batch: Batch, pause: float | None) -> None:
        tries = batch.tries + 1
        wait = pause if pause is not None else self._backoff.pause(tries, self._rng)
        self._batches.append(Batch(batch.members, tries, anyio.current_time() + wait))

    async def _substitute(self, batch: Batch, error: ApiError | None) -> None:
        """Keep and send one replacement; when that is refused too, leave the call visible and try it slowly."""
        (key,) = batch.members
        assert error is not None
        record = self._journal.get(key)
        if record is None or record.state not in SENDABLE:
            # Closed while the POST was in flight: there is nothing left to replace.
            return
        logger.error(
            "the API refused a result (HTTP %s, %s)%s",
            error.status,
            error.code,
            "; its substitute too" if record.substitute is not None else "; a substitute is sent",
            extra={"session_id": key.session_id, "turn_id": key.turn_id, "call_id": key.call_id},
        )
        if record.substitute is not None:
            self._again(batch, self._backoff.maximum)
            return
        receipt = self._journal.substitute(key, self._refused_text(record, error), f"HTTP {error.status} {error.code}")
        (count,) = await receipt.committed()
        if count != 1:
            await self._journal.refresh([key])
        self.add(key)
