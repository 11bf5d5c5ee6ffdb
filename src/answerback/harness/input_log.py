"""The log of inputs: what clients sent, what they were told, and whether it changed anything."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from answerback.harness.clock import Clock
from answerback.harness.faults import Firing
from answerback.harness.records import LogEntry


class InputLog:
    """Every input in order; the promises of a client are proven from it."""

    def __init__(self, *, clock: Clock) -> None:
        self.entries: list[LogEntry] = []
        self._clock = clock
        self._unwritten: list[LogEntry] = []
        self._requests = 0

    def __repr__(self) -> str:
        return f"<InputLog {len(self.entries)} entries>"

    def restore(self, entries: Sequence[LogEntry]) -> None:
        """Take over entries read from disk."""
        self.entries = list(entries)
        self._requests = max((entry.request for entry in entries), default=0)

    def request(self) -> int:
        """Return the number of a new request."""
        self._requests += 1
        return self._requests

    def take_unwritten(self) -> list[LogEntry]:
        """Return the entries added since the last time, to be written to disk."""
        unwritten, self._unwritten = self._unwritten, []
        return unwritten

    def add(
        self,
        kind: str,
        *,
        session_id: str | None,
        status: int,
        body: bytes,
        effect: bool,
        request: int,
        key: str | None = None,
        element: bytes | None = None,
        turn_id: str | None = None,
        call_id: str | None = None,
        code: str | None = None,
    ) -> None:
        """Add an entry; `element` is the event it is about, where the body held several."""
        text = (body if element is None else element).decode("utf-8", "backslashreplace")
        entry = LogEntry(
            seq=len(self.entries) + 1,
            t=self._clock.now(),
            session_id=session_id,
            kind=kind,
            status=status,
            idempotency_key=key,
            body=text,
            body_sha256=hashlib.sha256(body).hexdigest(),
            effect=effect,
            request=request,
            element_sha256=None if element is None else hashlib.sha256(element).hexdigest(),
            turn_id=turn_id,
            call_id=call_id,
            code=code,
        )
        self.entries.append(entry)
        self._unwritten.append(entry)

    def fault(self, firing: Firing) -> None:
        """Add an entry for a fault rule that fired."""
        text = f"rule {firing.rule} on {firing.on}: {firing.kind}"
        self.add("fault", session_id=firing.session_id, status=0, body=text.encode(), effect=False, request=0)
