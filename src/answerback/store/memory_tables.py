"""The journal's tables as dictionaries, with the same meaning of every write as the SQL has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from answerback.errors import StoreError
from answerback.model import (
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
from answerback.store.base import (
    DecideApproval,
    InsertCall,
    PutApproval,
    PutCheckpoint,
    PutInput,
    PutLate,
    PutSession,
    PutSubstitute,
    UpdateCall,
    UpdateInput,
    UpdateSession,
    UseApproval,
    Write,
)
from answerback.store.statements import outcome_hash

replace = msgspec.structs.replace


class Tables:
    """All rows. Values are immutable and replaced, so that a transaction can be undone."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.calls: dict[CallKey, CallRecord] = {}
        self.transitions: dict[CallKey, tuple[TransitionRecord, ...]] = {}
        self.checkpoints: dict[CallKey, dict[str, bytes]] = {}
        self.late: dict[CallKey, tuple[LateRecord, ...]] = {}
        self.approvals: dict[CallKey, ApprovalRecord] = {}
        self.sessions: dict[str, SessionRecord] = {}
        self.inputs: dict[tuple[str, str], InputRecord] = {}
        self._undo: list[Callable[[], object]] = []
        self._last_seq = 0

    def __repr__(self) -> str:
        return f"<Tables {len(self.sessions)} sessions, {len(self.calls)} calls, {len(self.inputs)} inputs>"

    def apply(self, transaction: Sequence[Write]) -> tuple[int, ...] | StoreError:
        """Apply one transaction whole, or not at all when one of its statements cannot be applied."""
        self._undo.clear()
        try:
            return tuple(self._apply(write) for write in transaction)
        except LookupError as error:
            for undo in reversed(self._undo):
                undo()
            return StoreError(f"the store refused this write ({error.args[0]}); nothing of it was applied")

    def _apply(self, write: Write) -> int:
        match write:
            case InsertCall():
                return self._insert_call(write.record)
            case UpdateCall():
                return self._update_call(write)
            case PutSubstitute():
                return self._put_substitute(write)
            case PutLate():
                self._need_call(write.record.key)
                self._set(self.late, write.record.key, (*self.late.get(write.record.key, ()), write.record))
                return 1
            case PutCheckpoint():
                self._need_call(write.key)
                self._set(self.checkpoints, write.key, {**self.checkpoints.get(write.key, {}), write.name: write.value})
                return 1
            case PutApproval():
                return self._put_approval(write)
            case DecideApproval():
                return self._decide_approval(write)
            case UseApproval():
                return self._use_approval(write)
            case PutSession():
                return self._put_session(write.record)
            case UpdateSession():
                return self._update_session(write)
            case PutInput():
                return self._put_input(write.record)
            case UpdateInput():
                return self._update_input(write)

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Put a row and remember how to take it back. A replaced row keeps its place in the order."""
        if key in table:
            old = table[key]
            self._undo.append(lambda: table.__setitem__(key, old))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def _need_call(self, key: CallKey) -> CallRecord:
        record = self.calls.get(key)
        if record is None:
            raise LookupError("no such call")
        return record

    def _insert_call(self, record: CallRecord) -> int:
        if record.key in self.calls:
            return 0
        if record.outcome is not None:
            record = replace(record, outcome_hash=outcome_hash(record.outcome))
        self._set(self.calls, record.key, record)
        self._step(record, "", record.observed_at)
        return 1

    def _update_call(self, write: UpdateCall) -> int:
        record = self.calls.get(write.key)
        if record is None or record.state not in write.sources:
            return 0
        if write.token is not None and record.token != write.token:
            return 0
        if write.attempt is not None and record.attempt != write.attempt:
            return 0
        changes: dict[str, Any] = {"reason": write.reason, **write.changes}
        outcome: bytes | None = write.changes.get("outcome")
        if outcome is not None:
            if record.outcome is not None:
                return 0
            changes["outcome_hash"] = outcome_hash(outcome)
        moved = replace(record, state=write.target, **changes)
        self._set(self.calls, write.key, moved)
        self._step(replace(moved, reason=changes["reason"]), record.state.value, write.at)
        return 1

    def _step(self, record: CallRecord, source: str, at: int) -> None:
        before = self.transitions.get(record.key, ())
        step = TransitionRecord(
            key=record.key,
            seq=len(before) + 1,
            at=at,
            source=source,
            target=record.state.value,
            attempt=record.attempt,
            incarnation=self.incarnation,
            pid=os.getpid(),
            reason=record.reason,
        )
        self._set(self.transitions, record.key, (*before, step))

    def _put_substitute(self, write: PutSubstitute) -> int:
        record = self.calls.get(write.key)
        if record is None or record.substitute is not None:
            return 0
        changed = replace(record, substitute=write.element, submit_epoch=record.submit_epoch + 1, submit_status="none")
        self._set(self.calls, write.key, changed)
        return 1

    def _put_approval(self, write: PutApproval) -> int:
        if write.key not in self.calls or write.key in self.approvals:
            return 0
        self._set(self.approvals, write.key, ApprovalRecord(key=write.key, digest=write.digest, asked_at=write.at))
        return 1

    def _decide_approval(self, write: DecideApproval) -> int:
        known = self.approvals.get(write.key)
        if known is None or known.verdict is not None:
            return 0
        decided = replace(known, verdict=write.verdict, decided_at=write.at, decided_by=write.by, reason=write.reason)
        self._set(self.approvals, write.key, decided)
        return 1

    def _use_approval(self, write: UseApproval) -> int:
        known = self.approvals.get(write.key)
        if known is None or known.verdict != "approved" or known.digest != write.digest:
            return 0
        self._set(self.approvals, write.key, replace(known, used_at=known.used_at or write.at))
        return 1

    def _put_session(self, record: SessionRecord) -> int:
        if record.local_id in self.sessions or self._named(record):
            return 0
        self._set(self.sessions, record.local_id, record)
        return 1

    def _update_session(self, write: UpdateSession) -> int:
        record = self.sessions.get(write.local_id)
        if record is None:
            return 0
        changed = replace(record, **write.changes)
        if self._named(changed):
            raise LookupError("a session of that name exists")
        self._set(self.sessions, write.local_id, changed)
        return 1

    def _named(self, record: SessionRecord) -> bool:
        """Whether another session has the session_id or the key of this one."""
        others = [other for other in self.sessions.values() if other.local_id != record.local_id]
        ids = record.session_id is not None and any(other.session_id == record.session_id for other in others)
        return ids or (record.key is not None and any(other.key == record.key for other in others))

    def _put_input(self, record: InputRecord) -> int:
        if (record.session_id, record.key) in self.inputs:
            return 0
        self._last_seq += 1
        self._set(self.inputs, (record.session_id, record.key), replace(record, seq=self._last_seq))
        return 1

    def _update_input(self, write: UpdateInput) -> int:
        record = self.inputs.get((write.session_id, write.key))
        if record is None or (write.sources and record.state not in write.sources):
            return 0
        self._set(self.inputs, (write.session_id, write.key), replace(record, **write.changes))
        return 1

    # Reads ---------------------------------------------------------------------------------------------------------

    def calls_where(
        self, *, session_id: str | None = None, states: Iterable[CallState] | None = None
    ) -> list[CallRecord]:
        """Return calls of a session in one of these states, oldest first; None means any."""
        wanted = None if states is None else frozenset(states)
        return [
            record
            for record in self.calls.values()
            if (session_id is None or record.key.session_id == session_id)
            and (wanted is None or record.state in wanted)
        ]

    def inputs_of(self, session_id: str, *, pending: bool) -> list[InputRecord]:
        """Return the inputs of a session in order; only those neither done nor refused when `pending`."""
        ended = {"done", "refused"} if pending else set[str]()
        return [
            record for record in self.inputs.values() if record.session_id == session_id and record.state not in ended
        ]

    def unfinished_sessions(self) -> list[SessionRecord]:
        """Return the open sessions that are active or have a call or an input left."""
        calls = {record.key.session_id for record in self.calls.values() if not record.state.closed}
        inputs = {record.session_id for record in self.inputs.values() if record.state not in {"done", "refused"}}
        return [
            record
            for record in self.sessions.values()
            if record.state == "open" and (record.active or record.session_id in calls | inputs)
        ]

    def open_session_ids(self, origin: SessionOrigin, after: str) -> list[str]:
        """Return the ids of open sessions that are greater than `after`, in their order."""
        return sorted(
            record.session_id
            for record in self.sessions.values()
            if record.state == "open" and record.origin == origin and (record.session_id or "") > after
            if record.session_id is not None
        )
