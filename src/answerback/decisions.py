"""A person's (or a program's) decision about a call whose outcome nobody knows."""

from __future__ import annotations

import time
from typing import Any

from answerback.actors.journal import encode
from answerback.actors.resolve import verdict_outcome
from answerback.errors import DecisionError
from answerback.handlers import outcome as texts
from answerback.handlers.policy import NotHappened, Verdict
from answerback.handlers.tool import Tool
from answerback.model import CallRecord, CallState, Outcome
from answerback.names import find_call
from answerback.store.base import DecideApproval, Store, UpdateCall, Write


async def approve(store: Store, call: str, *, by: str | None = None, reason: str | None = None) -> CallRecord:
    """Store a yes to a call that waits for one; whoever follows the session starts it.

    The yes is for the arguments the call was asked with, and for this call only.

    Raises:
        UnknownCallError: no call, or several, have this name.
        DecisionError: the call does not wait for an approval (any more).
    """
    record = await _waiting(store, call)
    now = _now()
    say = DecideApproval(key=record.key, verdict="approved", at=now, by=by, reason=reason)
    move = UpdateCall(
        key=record.key,
        sources=(CallState.WAITING_APPROVAL,),
        target=CallState.REQUESTED,
        at=now,
        reason=f"approved by {by}" if by else "approved",
    )
    return await _decided(store, record, say, move)


async def reject(store: Store, call: str, *, reason: str | None = None, by: str | None = None) -> CallRecord:
    """Store a no to a call that waits for an approval; the model reads `reason`, the handler never runs.

    Raises:
        UnknownCallError: no call, or several, have this name.
        DecisionError: the call does not wait for an approval (any more).
    """
    record = await _waiting(store, call)
    now = _now()
    text = f"The call was not approved: {reason}" if reason else "The call was not approved."
    outcome = Outcome(kind="rejected", error=text)
    say = DecideApproval(key=record.key, verdict="rejected", at=now, by=by, reason=reason)
    move = UpdateCall(
        key=record.key,
        sources=(CallState.WAITING_APPROVAL,),
        target=CallState.FINISHED,
        at=now,
        changes={"outcome_kind": outcome.kind, "outcome": encode(record.key, outcome), "finished_at": now},
        reason=f"rejected by {by}" if by else "rejected",
    )
    return await _decided(store, record, say, move)


async def _waiting(store: Store, call: str) -> CallRecord:
    await store.flush()
    record = await find_call(store, call)
    if record.state is not CallState.WAITING_APPROVAL:
        raise DecisionError(
            f"call {record.public_id[:12]} is {record.state.value}, not waiting for an approval; nothing was changed"
        )
    return record


async def _decided(store: Store, record: CallRecord, *statements: Write) -> CallRecord:
    """Apply a decision whole; every statement must have matched, or somebody else decided in this moment."""
    if set(await store.write(*statements).committed()) != {1}:
        raise DecisionError(f"call {record.public_id[:12]} changed in this moment; look at it again")
    return (await store.calls_by_key([record.key]))[record.key]


def _now() -> int:
    return time.time_ns() // 1000


async def decide(
    store: Store, call: str, verdict: Verdict[Any], *, tool: Tool[..., Any] | None = None, reason: str = "decided"
) -> CallRecord:
    """Store a decision about an INDETERMINATE call, or about one that is held because nobody handles it here.

    `Happened` and `Failed` store an outcome, `NotHappened` lets the handler run (again), `Unknown` answers that the
    outcome is unknown. Whoever follows the session does the rest.

    Raises:
        UnknownCallError: no call, or several, have this name.
        DecisionError: the call is not waiting for a decision (any more).
    """
    await store.flush()
    record = await find_call(store, call)
    held = record.state is CallState.REQUESTED and record.hold_until is not None
    if record.state is not CallState.INDETERMINATE and not held:
        raise DecisionError(
            f"call {record.public_id[:12]} is {record.state.value}, not waiting for a decision; nothing was changed"
        )
    now = _now()
    changes: dict[str, Any] = {"hold_until": None, "next_at": None}
    target = CallState.FINISHED
    if isinstance(verdict, NotHappened):
        target = CallState.REQUESTED
        changes["deadline"] = None
    else:
        outcome = verdict_outcome(tool, verdict) or texts.interrupted(record)
        element = encode(record.key, outcome)
        sealed = element if tool is None else tool.seal(element)
        changes |= {"outcome_kind": outcome.kind, "outcome": sealed, "finished_at": now}
    statement = UpdateCall(
        key=record.key,
        sources=(record.state,),
        target=target,
        at=now,
        changes=changes,
        reason=f"{reason}: {type(verdict).__name__}",
    )
    return await _decided(store, record, statement)
