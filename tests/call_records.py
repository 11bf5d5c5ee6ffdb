"""Rows of the journal as the tests of the daemon need them: with a value that must show up nowhere."""

from __future__ import annotations

from typing import Any

import msgspec

from answerback.model import CallKey, CallRecord, CallState

CANARY = "c4n4ry-4711-do-not-show"
KEY = CallKey("sess_1", "turn_1", "call_1")
T0 = 1_700_000_000_000_000
SECOND = 1_000_000


def row(
    state: CallState = CallState.REQUESTED, *, key: CallKey = KEY, name: str = "refund", **facts: Any
) -> CallRecord:
    """Return a row in this state."""
    arguments = msgspec.json.encode({"card": CANARY})
    return CallRecord(key=key, name=name, arguments=arguments, arguments_hash="h", state=state, observed_at=T0, **facts)


def life(key: CallKey = KEY, *, name: str = "refund") -> list[CallRecord]:
    """Return the rows of a call that goes well, one for each state it passes."""
    requested = row(key=key, name=name)
    started = msgspec.structs.replace(requested, state=CallState.STARTED, attempt=1, started_at=T0 + SECOND)
    finished = msgspec.structs.replace(
        started,
        state=CallState.FINISHED,
        outcome_kind="ok",
        outcome=CANARY.encode(),
        finished_at=T0 + 3 * SECOND,
    )
    submitted = msgspec.structs.replace(
        finished, state=CallState.SUBMITTED, submit_status="accepted", submitted_at=T0 + 4 * SECOND
    )
    return [
        requested,
        started,
        finished,
        submitted,
        msgspec.structs.replace(submitted, state=CallState.ACKED, closed_at=T0 + 5 * SECOND),
    ]
