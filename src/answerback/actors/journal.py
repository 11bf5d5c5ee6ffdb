"""The journal of one session: what it writes goes to the store, and a mirror of the open rows stays in memory.

The mirror is what `reconcile` reads. A state that lets something *leave* the process (FINISHED, so a POST; STARTED, so
a handler) enters the mirror only when its commit was confirmed or by the task that waits for that confirmation; the
others enter at once, because statements of one session are applied in the order they are queued.

The journal belongs to the runtime and not to the actor, so a restarted actor finds it; `load` reads it anew.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from answerback.actors.messages import Asked, Reading
from answerback.actors.reconcile import Entry
from answerback.handlers.secrets import Secrecy, UnknownKeyError, is_masked, is_sealed
from answerback.model import CallKey, CallRecord, CallState, LateRecord, Observer, Outcome, Unobserved
from answerback.store.base import (
    InsertCall,
    PutApproval,
    PutCheckpoint,
    PutLate,
    PutSubstitute,
    Receipt,
    Store,
    UpdateCall,
    UseApproval,
)
from answerback.wire import inputs

logger = logging.getLogger("answerback.journal")

CLOSED_KEPT = 256
"""Closed rows kept in memory for repeated frames; older ones are read from the store when they are asked for."""


class Journal:
    """Calls of one session, newest knowledge first in memory, truth in the store."""

    def __init__(
        self,
        session_id: str,
        store: Store,
        *,
        now: Callable[[], int],
        observer: Observer | None = None,
        secrecy: Secrecy | None = None,
    ) -> None:
        self.session_id = session_id
        self._store = store
        self._now = now
        self._entries: dict[CallKey, Entry] = {}
        self._closed: dict[CallKey, Entry] = {}
        self._secrecy = secrecy or Secrecy()
        self._live: dict[CallKey, bytes] = {}
        self._unreadable: set[CallKey] = set()
        self._tick = 0
        self._observer = observer or Unobserved()

    def __repr__(self) -> str:
        return f"<Journal {self.session_id} {len(self._entries)} open>"

    def tick(self) -> int:
        """Advance the logical clock that orders writes, POSTs and GETs of this session."""
        self._tick += 1
        return self._tick

    @property
    def entries(self) -> Mapping[CallKey, Entry]:
        """The open calls."""
        return self._entries

    def get(self, key: CallKey) -> CallRecord | None:
        """Return what is known of a call in memory."""
        entry = self._entries.get(key) or self._closed.get(key)
        return entry.record if entry else None

    async def load(self) -> None:
        """Read the open rows of the session from the store, forgetting what memory says."""
        tick = self.tick()
        await self._store.flush()
        rows = await self._store.open_calls(self.session_id)
        # Calls go on while this reads: what their tasks wrote in the meantime is newer than the rows.
        newer = {key: entry for key, entry in self._entries.items() if entry.touched > tick}
        closed = {key: entry for key, entry in self._closed.items() if entry.touched > tick}
        known = self._entries.keys()
        self._entries = {row.key: Entry(row, tick) for row in rows if row.key not in closed} | newer
        for key in self._entries.keys() - known:
            self._loaded(self._entries[key].record)
        self._closed = closed

    def _loaded(self, record: CallRecord) -> None:
        """Tell the observer of a call this process meets; a result an earlier one stored is sent, not computed again."""
        self._observer.moved(None, record)
        if record.payload is not None and 0 < record.incarnation < self._store.info.incarnation:
            self._observer.repeated(record.key, "restart")
            self._observer.resent(record.key, "restart")

    async def lookup(self, keys: Iterable[CallKey]) -> dict[CallKey, Entry]:
        """Return the open rows, and the rows in any state of `keys`: the store decides what was already done."""
        keys = list(keys)
        missing = [key for key in keys if key not in self._entries and key not in self._closed]
        if missing:
            tick = self._tick
            found = await self._store.calls_by_key(missing)
            for key, row in found.items():
                # Whoever wrote in the meantime knows better.
                if key not in self._entries and key not in self._closed:
                    self._keep(Entry(row, tick))
        entries = dict(self._entries)
        entries.update({key: self._closed[key] for key in keys if key in self._closed})
        return entries

    async def calls(self, *, limit: int = 1000) -> list[CallRecord]:
        """Return the session's newest calls, oldest first, as memory has them where it is ahead of the store."""
        rows = {row.key: row for row in reversed(await self._store.calls(session_id=self.session_id, limit=limit))}
        for key, entry in (self._closed | self._entries).items():
            rows[key] = entry.record
        return list(rows.values())

    async def refresh(self, keys: Sequence[CallKey]) -> None:
        """Read rows again after a count that was not the expected one."""
        tick = self.tick()
        for key, row in (await self._store.calls_by_key(keys)).items():
            known = self._entries.get(key) or self._closed.get(key)
            if known is None or known.touched <= tick:
                self._keep(Entry(row, self.tick()))
                if known is not None and known.record.state is not row.state:
                    self._observer.moved(known.record, row)

    # --- what the store does not hold in clear ---------------------------------------------------------------------

    def recognised(self, reading: Reading, entries: Mapping[CallKey, Entry]) -> tuple[Reading, Mapping[CallKey, Entry]]:
        """Return what may be reconciled, with the listed arguments known by the hashes their rows have.

        Arguments a row only masks, or has given up, are kept in memory from here on. A call hashed under a key that is
        not here is left out: nothing can be said about it, and its siblings go on.
        """
        bare = [key for key in reading.asked if key in entries and not _holds_arguments(entries[key].record)]
        if not bare:
            return reading, entries
        asked, known = dict(reading.asked), dict(entries)
        for key in bare:
            one, stored = asked[key], known[key].record.arguments_hash
            try:
                same = self._secrecy.same(stored, one.arguments_hash)
            except UnknownKeyError as error:
                self._report(key, error)
                del asked[key], known[key]
                continue
            if same:
                self._live[key] = one.arguments
                asked[key] = msgspec.structs.replace(one, arguments_hash=stored)
        return Reading(asked, reading.sent_at), known

    def arguments(self, record: CallRecord) -> bytes:
        """Return the arguments to run a call with.

        Raises:
            LookupError: its row does not hold them, and the session has not listed them to this process.
        """
        return record.arguments if _holds_arguments(record) else self._live[record.key]

    def revealed(self, record: CallRecord) -> CallRecord | None:
        """Return a row with the bytes of its result as they are sent; None, and an ERROR once, without the key."""
        if record.outcome is None or not is_sealed(record.outcome):
            return record
        try:
            return msgspec.structs.replace(record, outcome=self._secrecy.unsealed(record.outcome))
        except UnknownKeyError as error:
            self._report(record.key, error)
            return None

    def _report(self, key: CallKey, error: UnknownKeyError) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            ids = {"session_id": key.session_id, "turn_id": key.turn_id, "call_id": key.call_id}
            logger.error("a call is left as it is: %s", error, extra=ids)

    # --- T0: observe ----------------------------------------------------------------------------------------------

    def observe(self, key: CallKey, asked: Asked, *, state: CallState, reason: str | None) -> None:
        """Queue the first row of a call; it rides with the next commit."""
        now = self._now()
        arguments, arguments_hash = self._secrecy.stored(asked.name, asked.arguments, asked.arguments_hash)
        if is_masked(arguments_hash):
            self._live[key] = asked.arguments
        record = CallRecord(
            key=key,
            name=asked.name,
            arguments=arguments,
            arguments_hash=arguments_hash,
            state=state,
            is_async=asked.is_async,
            observed_at=now,
            reason=reason,
        )
        self._store.write(InsertCall(record), lazy=True)
        self._keep(Entry(record, self.tick()))
        self._observer.moved(None, record)

    # --- T1: start ------------------------------------------------------------------------------------------------

    def start(
        self, key: CallKey, *, sources: tuple[CallState, ...], approved: bool = False, **changes: Any
    ) -> tuple[Receipt, CallRecord]:
        """Queue the STARTED row of the next attempt; the handler may be entered only when every count is 1.

        With `approved`, the call's approval is claimed in the same transaction, for the arguments of the row.
        """
        record = self._require(key)
        now = self._now()
        values = {
            "attempt": record.attempt + 1,
            "token": secrets.token_hex(8),
            "incarnation": self._store.info.incarnation,
            "started_at": now,
            "next_at": None,
            "hold_until": None,
            **changes,
        }
        start = UpdateCall(
            key=key, sources=sources, target=CallState.STARTED, at=now, attempt=record.attempt, changes=values
        )
        claim = [UseApproval(key=key, digest=record.arguments_hash, at=now)] if approved else []
        return self._store.write(start, *claim), self._mirror(record, CallState.STARTED, values)

    async def ask_approval(self, key: CallKey) -> None:
        """Store that a person is asked about this call with these arguments, and wait for stable storage."""
        record = self._require(key)
        now = self._now()
        reason = "waiting for an approval"
        move = UpdateCall(key=key, sources=(record.state,), target=CallState.WAITING_APPROVAL, at=now, reason=reason)
        ask = PutApproval(key=key, digest=record.arguments_hash, at=now)
        receipt = self._store.write(move, ask)
        self._mirror(record, CallState.WAITING_APPROVAL, {"reason": reason})
        await receipt.committed()

    # --- T2: finish -----------------------------------------------------------------------------------------------

    async def finish(
        self,
        key: CallKey,
        outcome: Outcome,
        *,
        token: str | None,
        sources: tuple[CallState, ...],
        reason: str | None = None,
    ) -> bool:
        """Store an outcome's exact bytes and wait for stable storage; return whether this one was taken.

        With a `token`, only the attempt that holds it may finish the call. The first outcome wins, for ever.
        """
        record = self._require(key)
        now = self._now()
        element = self._secrecy.sealed(record.name, encode(key, outcome))
        values: dict[str, Any] = {
            "outcome_kind": outcome.kind,
            "outcome": element,
            "finished_at": now,
            "hold_until": None,
            "next_at": None,
        }
        receipt = self._store.write(
            UpdateCall(
                key=key,
                sources=sources,
                target=CallState.FINISHED,
                at=now,
                token=token,
                changes=values,
                reason=reason or (f"ref {outcome.ref}" if outcome.ref else None),
            )
        )
        (count,) = await receipt.committed()
        if count != 1:
            self._observer.repeated(key, "second_result")
            await self.refresh([key])
            return False
        self._mirror(self.get(key) or record, CallState.FINISHED, values)
        return True

    def late(self, key: CallKey, attempt: int, outcome: Outcome) -> None:
        """Record what a handler returned after its call was answered; it is never sent."""
        element = self._secrecy.sealed(self._require(key).name, encode(key, outcome))
        record = LateRecord(key=key, attempt=attempt, at=self._now(), kind=outcome.kind, element=element)
        self._store.write(PutLate(record), lazy=True)
        self._observer.repeated(key, "late_result")

    # --- other moves ----------------------------------------------------------------------------------------------

    def move(
        self, key: CallKey, target: CallState, *, reason: str | None = None, lazy: bool = True, **changes: Any
    ) -> Receipt:
        """Queue a move from the state the mirror has, and mirror it."""
        record = self._require(key)
        now = self._now()
        if target.closed:
            changes.setdefault("closed_at", now)
        receipt = self._store.write(
            UpdateCall(key=key, sources=(record.state,), target=target, at=now, changes=changes, reason=reason),
            lazy=lazy,
        )
        self._mirror(record, target, {**changes, "reason": reason})
        return receipt

    def note_async(self, key: CallKey) -> None:
        """Note that the call's function is `async`, which its first row did not know."""
        record = self._require(key)
        self.move(key, record.state, reason=record.reason, is_async=True)

    def substitute(self, key: CallKey, element: bytes, reason: str) -> Receipt:
        """Queue the one stored replacement of an outcome the API definitely refused."""
        record = self._require(key)
        receipt = self._store.write(PutSubstitute(key=key, element=element, reason=reason, at=self._now()))
        return self._with_substitute(receipt, record, element)

    def _with_substitute(self, receipt: Receipt, record: CallRecord, element: bytes) -> Receipt:
        replaced = msgspec.structs.replace(
            record, substitute=element, submit_epoch=record.submit_epoch + 1, submit_status="none"
        )
        self._keep(Entry(replaced, self.tick()))
        return receipt

    def touch(self, key: CallKey) -> None:
        """Note that something was sent about a call, so that an older GET says nothing about it."""
        entry = self._entries.get(key)
        if entry:
            self._entries[key] = Entry(entry.record, self.tick())

    # --- the mirror -----------------------------------------------------------------------------------------------

    def _require(self, key: CallKey) -> CallRecord:
        record = self.get(key)
        if record is None:
            raise LookupError(f"no journal row for call {key}; it must be observed first")
        return record

    def _mirror(self, record: CallRecord, target: CallState, changes: Mapping[str, Any]) -> CallRecord:
        changed = msgspec.structs.replace(record, state=target, **changes)
        self._keep(Entry(changed, self.tick()))
        self._observer.moved(record, changed)
        return changed

    def _keep(self, entry: Entry) -> None:
        key = entry.record.key
        if not entry.record.state.closed:
            self._closed.pop(key, None)
            self._entries[key] = entry
            return
        self._entries.pop(key, None)
        self._live.pop(key, None)
        self._closed[key] = entry
        while len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]


def _holds_arguments(record: CallRecord) -> bool:
    """Whether a row has the arguments themselves: not a mask, and not what retention left of them (nothing)."""
    return bool(record.arguments) and not is_masked(record.arguments_hash)


class Checkpoints:
    """The journal as a ToolContext may use it."""

    def __init__(self, store: Store, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now

    async def checkpoint(self, key: CallKey, attempt: int, name: str, value: bytes) -> None:
        """Put a named fact about a running call on stable storage."""
        statement = PutCheckpoint(key=key, attempt=attempt, name=name, value=value, at=self._now())
        await self._store.write(statement).committed()


def encode(key: CallKey, outcome: Outcome) -> bytes:
    """Encode an outcome as the `tool_result` element of its call."""
    return inputs.tool_result(
        turn_id=key.turn_id,
        call_id=key.call_id,
        success=outcome.success,
        output=outcome.output,
        error=outcome.error,
    )
