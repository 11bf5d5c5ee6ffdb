"""Makes the golden store file of the newest schema: `python tests/unit/store/golden/build.py`.

Run once with each release that has a new schema; a file that is there is never made again. All hold the same rows: one
session, call c1 answered, c2 finished but not accepted, c3 running when the process died, c4 waiting for an approval.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio

from answerback.handlers.arguments import canonical_hash
from answerback.model import CallKey, CallRecord, CallState, InputRecord, SessionRecord
from answerback.store.base import InsertCall, PutApproval, PutInput, PutSession, UpdateCall, UpdateInput, Write
from answerback.store.migrations.migrate import load_steps
from answerback.store.sqlite import SQLiteStore

HERE = Path(__file__).parent
SESSION, TURN = "sess_1", "turn_1"
T0 = 1_700_000_000_000_000
"""When the rows were written, in microseconds: 14 November 2023."""
ARGUMENTS = {
    "c1": {"order": 1},
    "c2": {"order": 2},
    "c3": {"order": 3},
    "c4": {"order": 4},
}
NAMES = {"c1": "refund", "c2": "refund", "c3": "refund", "c4": "close_account"}


def key(call_id: str) -> CallKey:
    """Return the key of one of the calls."""
    return CallKey(SESSION, TURN, call_id)


def element(call_id: str) -> bytes:
    """Return the bytes of a stored result; written out, so that they are those of then whatever encodes now."""
    return (
        b'{"type":"agent.session.input.tool_result","turn_id":"turn_1","call_id":"%b","success":true,'
        b'"output":"refunded %b"}' % (call_id.encode(), call_id.encode())
    )


def observed(call_id: str) -> InsertCall:
    """Return the first row of a call."""
    arguments = json.dumps(ARGUMENTS[call_id]).encode()
    return InsertCall(
        CallRecord(
            key=key(call_id),
            name=NAMES[call_id],
            arguments=arguments,
            arguments_hash=canonical_hash(arguments),
            observed_at=T0,
        )
    )


def moves(call_id: str, incarnation: int) -> list[UpdateCall]:
    """Return everything a call that was answered went through."""
    started: dict[str, Any] = {
        "attempt": 1,
        "token": f"token-{call_id}",
        "incarnation": incarnation,
        "started_at": T0 + 1,
        "deadline": T0 + 600_000_000,
        "handler_version": "0123456789abcdef",
    }
    finished: dict[str, Any] = {"outcome": element(call_id), "outcome_kind": "ok", "finished_at": T0 + 2}
    submitted: dict[str, Any] = {"submit_status": "accepted", "submitted_at": T0 + 3}
    return [
        UpdateCall(key=key(call_id), sources=(source,), target=target, at=T0 + step, changes=changes)
        for step, (source, target, changes) in enumerate(
            [
                (CallState.REQUESTED, CallState.STARTED, started),
                (CallState.STARTED, CallState.FINISHED, finished),
                (CallState.FINISHED, CallState.SUBMITTED, submitted),
                (CallState.SUBMITTED, CallState.ACKED, {"closed_at": T0 + 4}),
            ],
            start=1,
        )
    ]


def rows(incarnation: int) -> list[Write]:
    """Return all writes."""
    session = SessionRecord(
        local_id="ab_golden",
        session_id=SESSION,
        key="ticket-4711",
        request=b'{"agent":{"model":"m"},"environment":{"type":"none"}}',
        status="requires_action",
        active=True,
        created_at=T0 - 10,
        updated_at=T0,
    )
    asked = UpdateCall(
        key=key("c4"),
        sources=(CallState.REQUESTED,),
        target=CallState.WAITING_APPROVAL,
        at=T0 + 1,
        reason="waiting for an approval",
    )
    digest = canonical_hash(json.dumps(ARGUMENTS["c4"]).encode())
    return [
        PutSession(session),
        PutInput(InputRecord(session_id=SESSION, key="answerback:opening", state="accepted", created_at=T0 - 9)),
        UpdateInput(session_id=SESSION, key="answerback:opening", changes={"turn_id": TURN, "updated_at": T0}),
        *(observed(call_id) for call_id in ARGUMENTS),
        *moves("c1", incarnation),
        *moves("c2", incarnation)[:2],
        *moves("c3", incarnation)[:1],
        asked,
        PutApproval(key=key("c4"), digest=digest, at=T0 + 1),
    ]


async def build(path: Path) -> None:
    """Make one file."""
    async with SQLiteStore(path) as store:
        await store.write(*rows(store.info.incarnation)).committed()


if __name__ == "__main__":
    target = HERE / f"{load_steps()[-1].version:04}.db"
    if target.exists():
        raise SystemExit(f"{target} is there; a golden file is never made again")
    anyio.run(build, target)
    target.with_name(target.name + ".lock").unlink()
