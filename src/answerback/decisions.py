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
from answerback.model import CallRecord, CallState
from answerback.names import find_call
from answerback.store.base import Store, UpdateCall


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
    now = time.time_ns() // 1000
    changes: dict[str, Any] = {"hold_until": None, "next_at": None}
    target = CallState.FINISHED
    if isinstance(verdict, NotHappened):
        target = CallState.REQUESTED
        changes["deadline"] = None
    else:
        outcome = verdict_outcome(tool, verdict) or texts.interrupted(record)
        changes |= {"outcome_kind": outcome.kind, "outcome": encode(record.key, outcome), "finished_at": now}
    statement = UpdateCall(
        key=record.key,
        sources=(record.state,),
        target=target,
        at=now,
        changes=changes,
        reason=f"{reason}: {type(verdict).__name__}",
    )
    (count,) = await store.write(statement).committed()
    if count != 1:
        raise DecisionError(f"call {record.public_id[:12]} changed in this moment; look at it again")
    return (await store.calls_by_key([record.key]))[record.key]
