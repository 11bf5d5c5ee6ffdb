"""Journal rows for tests of the pure core, made with few words."""

from __future__ import annotations

from typing import Any

from answerback.actors.messages import Asked
from answerback.model import CallKey, CallRecord, CallState
from answerback.wire import inputs

SESSION = "sess_1"
SECOND = 1_000_000
"""Microseconds."""


def key(call_id: str = "call_1", turn_id: str = "turn_1") -> CallKey:
    """Name a call of the one session."""
    return CallKey(SESSION, turn_id, call_id)


def element(call: CallKey, output: str = "ok") -> bytes:
    """Encode a result."""
    return inputs.tool_result(turn_id=call.turn_id, call_id=call.call_id, success=True, output=output, error=None)


def asked(name: str = "refund", arguments: bytes = b"{}", *, is_async: bool = False) -> Asked:
    """Describe a required call; the hash stands for the arguments as they are."""
    return Asked(name=name, arguments=arguments, arguments_hash=f"hash of {arguments!r}", is_async=is_async)


def row(state: CallState, call: CallKey | None = None, **changes: Any) -> CallRecord:
    """Build a row in a state, with what such a row always has."""
    call = call or key()
    values: dict[str, Any] = {
        "key": call,
        "name": "refund",
        "arguments": b"{}",
        "arguments_hash": f"hash of {b'{}'!r}",
        "state": state,
    }
    if state not in {CallState.REQUESTED, CallState.WAITING_APPROVAL, CallState.OBSOLETE}:
        values |= {"attempt": 1, "token": "token", "incarnation": 1}
    if state in {CallState.FINISHED, CallState.SUBMITTED, CallState.ACKED, CallState.SUPERSEDED}:
        values |= {"outcome": element(call), "outcome_kind": "ok"}
    if state is CallState.SUBMITTED:
        values |= {"submit_status": "ambiguous"}
    if state is CallState.ACKED:
        values |= {"submit_status": "accepted"}
    return CallRecord(**values | changes)
