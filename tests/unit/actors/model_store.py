"""Stable storage for the recovery model: an ordered queue of writes in front of it, which a crash empties."""

from __future__ import annotations

import msgspec

from answerback.model import CallKey, CallRecord
from answerback.store.base import InsertCall, PutSubstitute, UpdateCall

Write = InsertCall | UpdateCall | PutSubstitute


class ModelStore:
    """Rows on stable storage. It watches over the promise that an outcome, once stored, never changes."""

    def __init__(self) -> None:
        self.rows: dict[CallKey, CallRecord] = {}
        self._queue: list[Write] = []

    def queue(self, write: Write) -> None:
        """Queue a write; it is not on stable storage yet."""
        self._queue.append(write)

    def commit(self) -> int:
        """Put everything queued on stable storage, in order; return the count of the last write."""
        count = 1
        for write in self._queue:
            count = self._apply(write)
        self._queue.clear()
        return count

    def crash(self) -> None:
        """Lose what is not committed."""
        self._queue.clear()

    def _apply(self, write: Write) -> int:
        match write:
            case InsertCall(record):
                return int(self.rows.setdefault(record.key, record) is record)
            case PutSubstitute(key=key, element=element):
                before = self.rows[key]
                if before.substitute is not None:
                    return 0
                self._put(before, substitute=element, submit_epoch=before.submit_epoch + 1, submit_status="none")
                return 1
            case UpdateCall():
                return self._update(write)

    def _update(self, write: UpdateCall) -> int:
        before = self.rows.get(write.key)
        if before is None or before.state not in write.sources:
            return 0
        if write.token is not None and write.token != before.token:
            return 0
        if write.attempt is not None and write.attempt != before.attempt:
            return 0
        if "outcome" in write.changes and before.outcome is not None:
            return 0
        self._put(before, state=write.target, **write.changes)
        return 1

    def _put(self, before: CallRecord, **changes: object) -> None:
        after = msgspec.structs.replace(before, **changes)
        assert before.outcome in {None, after.outcome}, "P2: a stored outcome changed"
        assert before.substitute in {None, after.substitute}, "P2: a stored substitute changed"
        self.rows[after.key] = after
