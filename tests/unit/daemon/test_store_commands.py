"""The commands that look into a store file and change it, on a real one that nobody has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import jsonschema_rs
import pytest

from answerback.daemon.cli import main
from answerback.model import CallKey, CallRecord, CallState, InputRecord, SessionRecord
from answerback.store.base import InsertCall, PutCheckpoint, PutInput, PutSession, UpdateCall
from answerback.store.sqlite import SQLiteStore

DONE = CallKey("sess_1", "turn_1", "call_1")
STUCK = CallKey("sess_1", "turn_1", "call_2")
T0 = 1_700_000_000_000_000


def _call(key: CallKey, name: str) -> CallRecord:
    arguments = b'{"order": 4711}'
    return CallRecord(key=key, name=name, arguments=arguments, arguments_hash="a" * 64, observed_at=T0)


async def _fill(path: Path) -> None:
    started = {"attempt": 1, "token": "t1", "started_at": T0 + 1}
    element = b'{"type":"agent.session.input.tool_result","output":"secret"}'
    finished = {"outcome": element, "outcome_kind": "ok", "finished_at": T0 + 2}
    hold = {"hold_until": T0 + 9}
    requested, begun = (CallState.REQUESTED,), (CallState.STARTED,)
    async with SQLiteStore(path) as store:
        session = SessionRecord(local_id="l1", session_id="sess_1", key="ticket-7", status="requires_action")
        store.write(PutSession(session), PutSession(SessionRecord(local_id="l2", key="ticket-8")))
        store.write(PutInput(InputRecord(session_id="sess_1", key="k1", element=b'{"text":"secret"}')))
        store.write(InsertCall(_call(DONE, "look")), InsertCall(_call(STUCK, "refund")))
        for key in (DONE, STUCK):
            store.write(UpdateCall(key=key, sources=requested, target=CallState.STARTED, at=T0 + 1, changes=started))
        store.write(PutCheckpoint(key=STUCK, attempt=1, name="sent", value=b'"secret"', at=T0 + 1))
        store.write(
            UpdateCall(key=DONE, sources=begun, target=CallState.FINISHED, at=T0 + 2, changes=finished),
            UpdateCall(
                key=STUCK, sources=begun, target=CallState.INDETERMINATE, at=T0 + 3, changes=hold, reason="process died"
            ),
        )
        await store.flush()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "calls.db"
    anyio.run(_fill, path)
    return path


class _Program:
    """Runs one command and keeps what it printed."""

    def __init__(self, db: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._db = db
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--db", str(self._db)])
        out, err = self._capsys.readouterr()
        assert ended.value.code == code, out + err
        return err if code else out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def answerback(db: Path, capsys: pytest.CaptureFixture[str]) -> _Program:
    return _Program(db, capsys)


def test_ls_lists_sessions_with_their_open_calls(answerback: _Program) -> None:
    sessions = {one["key"]: one for one in answerback.json("ls")["sessions"]}
    assert sessions["ticket-7"]["session_id"] == "sess_1"
    assert (sessions["ticket-7"]["open_calls"], sessions["ticket-7"]["state"]) == (2, "open")
    assert sessions["ticket-8"]["session_id"] is None
    text = answerback("ls")
    assert text.splitlines()[0].split() == ["SESSION", "KEY", "STATUS", "STATE", "OPEN", "CALLS"]
    assert "(not confirmed)" in text


def test_calls_are_filtered_by_state_and_session(answerback: _Program) -> None:
    assert {one["call_id"] for one in answerback.json("calls")["calls"]} == {"call_1", "call_2"}
    (finished,) = answerback.json("calls", "--state", "finished")["calls"]
    assert (finished["call_id"], finished["id"]) == ("call_1", DONE.digest[:6])
    assert len(answerback.json("calls", "--state", "open", "--session", "sess_1")["calls"]) == 2
    assert answerback.json("calls", "--session", "sess_9")["calls"] == []
    assert STUCK.digest[:6] in answerback("calls")


def test_calls_that_wait_for_a_person_make_exit_5(answerback: _Program) -> None:
    answerback("calls", "--undecided", code=5)
    answerback("decide", STUCK.digest[:6], "--happened")
    assert answerback.json("calls", "--undecided")["calls"] == []


def test_a_call_held_because_nobody_handles_it_waits_for_a_person_too(answerback: _Program, db: Path) -> None:
    async def hold() -> None:
        key, requested = CallKey("sess_1", "turn_1", "call_3"), (CallState.REQUESTED,)
        held = UpdateCall(key=key, sources=requested, target=CallState.REQUESTED, at=T0, changes={"hold_until": T0 + 9})
        async with SQLiteStore(db) as store:
            await store.write(InsertCall(_call(key, "unhandled")), held).committed()

    answerback("decide", "call_2", "--unknown")
    anyio.run(hold)
    answerback("calls", "--undecided", code=5)
    answerback("decide", "call_3", "--failed", "Nobody does this any more.")
    answerback("calls", "--undecided")


TEXT, TIME, COUNT = {"type": "string"}, {"type": ["string", "null"]}, {"type": "integer", "minimum": 0}
SESSION = {
    "type": "object",
    "properties": {
        "session_id": TIME, "local_id": TEXT, "key": TIME, "origin": {"enum": ["opened", "attached"]}, "state": TEXT,
        "status": TEXT, "active": {"type": "boolean"}, "created_at": TIME, "updated_at": TIME, "open_calls": COUNT,
        "last_turn_id": TIME, "reason": TIME,
    },
    "required": ["session_id", "local_id", "key", "origin", "state", "status", "active", "created_at"],
    "additionalProperties": False,
}  # fmt: skip
CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9a-f]{6,64}$"}, "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "attempt": COUNT, "crashes": COUNT, "state": {"enum": [state.value for state in CallState]},
        "effects": {"enum": ["read", "idempotent", "once"]}, "observed_at": TIME, "arguments": TEXT, "result": TIME,
    },
    "required": [
        "id", "hash", "session_id", "turn_id", "call_id", "name", "state", "effects", "attempt", "crashes", "outcome",
        "submit_status", "submit_epoch", "reason", "observed_at", "started_at", "finished_at", "submitted_at",
        "closed_at", "deadline", "next_at", "hold_until", "arguments", "result", "substitute",
    ],
}  # fmt: skip


def _list_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1}


@pytest.mark.parametrize(
    ("arguments", "members"),
    [
        (("ls",), {"sessions": _list_of(SESSION)}),
        (("calls",), {"calls": _list_of(CALL)}),
        (("show", "ticket-7"), {"session": SESSION, "calls": _list_of(CALL), "inputs": {"type": "array"}}),
        (
            ("show", "call_2"),
            {
                "call": CALL,
                "transitions": {"type": "array"},
                "checkpoints": {"type": "object"},
                "late": {"type": "array"},
            },
        ),
        (("decide", "call_2", "--unknown"), {"call": CALL}),
        (("pause", "ticket-7"), {"session": SESSION}),
        (("resume", "ticket-7"), {"session": SESSION}),
    ],
)
def test_json_keeps_its_shape(answerback: _Program, arguments: tuple[str, ...], members: dict[str, Any]) -> None:
    document = answerback.json(*arguments)
    schema = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    validator = jsonschema_rs.validator_for(schema)
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize("name", ["sess_1", "ticket-7", "l1"])
def test_a_session_is_shown_by_any_of_its_names(answerback: _Program, name: str) -> None:
    shown = answerback.json("show", name)
    assert shown["session"]["session_id"] == "sess_1"
    assert len(shown["calls"]) == 2
    assert [one["key"] for one in shown["inputs"]] == ["k1"]
    assert "refund" in answerback("show", name)


def test_a_session_that_was_never_confirmed_is_shown_too(answerback: _Program) -> None:
    assert "ticket-8" in answerback("show", "ticket-8")


@pytest.mark.parametrize("name", [STUCK.digest, STUCK.digest[:6], STUCK.digest[:6].upper(), "call_2"])
def test_a_call_is_shown_with_its_whole_life(answerback: _Program, name: str) -> None:
    shown = answerback.json("show", name)
    assert shown["call"]["hash"] == STUCK.digest
    assert [step["target"] for step in shown["transitions"]] == ["requested", "started", "indeterminate"]
    assert shown["transitions"][-1]["reason"] == "process died"
    text = answerback("show", name)
    assert "process died" in text
    assert "sent" in text


def test_values_are_shown_only_when_asked_for(answerback: _Program) -> None:
    for name in ("call_1", "call_2", "sess_1"):
        assert "secret" not in answerback("show", name)
        assert "4711" not in answerback("show", name)
    assert "secret" in answerback("show", "call_1", "--values")
    assert "4711" in answerback("show", "call_2", "--values")


def test_a_name_nobody_has_exits_1(answerback: _Program) -> None:
    assert "No call is named 'fffffff'" in answerback("show", "fffffff", code=1)
    assert "No call is named 'fffffff'" in answerback("decide", "fffffff", "--unknown", code=1)


@pytest.mark.parametrize("verb", ["approve", "reject", "resend"])
def test_a_call_nobody_knows_cannot_be_asked_for_anything(answerback: _Program, verb: str) -> None:
    assert "No call is named 'fffffff'" in answerback(verb, "fffffff", code=1)


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
@pytest.mark.parametrize("name", ["nobody", "ticket-8"])
def test_a_session_nobody_knows_or_that_was_never_confirmed_cannot_either(
    answerback: _Program, verb: str, name: str
) -> None:
    assert f"No session is named {name!r}" in answerback(verb, name, code=1)


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_call_that_waits_for_no_approval_is_left_alone(answerback: _Program, verb: str) -> None:
    assert "not waiting for an approval" in answerback(verb, "call_2", code=1)
    assert answerback.json("show", "call_2")["call"]["state"] == "indeterminate"


def test_a_session_is_paused_and_resumed_on_a_store_nobody_has(answerback: _Program) -> None:
    assert answerback.json("pause", "ticket-7")["session"]["state"] == "paused"
    assert answerback("resume", "sess_1") == "sess_1: open\n"
    assert answerback.json("show", "ticket-7")["session"]["state"] == "open"


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (("--happened", '{"refund": "rf_902"}'), "finished"),
        (("--happened", "plain words"), "finished"),
        (("--happened",), "finished"),
        (("--failed", "The bank refused."), "finished"),
        (("--not-happened",), "requested"),
    ],
)
def test_a_decision_is_written_and_stays(answerback: _Program, verdict: tuple[str, ...], state: str) -> None:
    decided = answerback.json("decide", STUCK.digest[:8], *verdict)["call"]
    assert decided["state"] == state
    assert answerback.json("show", STUCK.digest)["call"]["state"] == state


def test_what_happened_reaches_the_stored_result(answerback: _Program) -> None:
    answerback("decide", "call_2", "--happened", '{"refund": "rf_902"}')
    element = json.loads(answerback.json("show", "call_2", "--values")["call"]["result"])
    assert element["success"] is True
    assert json.loads(element["output"]) == {"refund": "rf_902"}


def test_a_call_that_waits_for_no_decision_cannot_be_decided(answerback: _Program) -> None:
    assert "finished" in answerback("decide", "call_1", "--happened", code=1)


def test_a_store_in_use_says_which_process_to_ask_and_changes_nothing(
    db: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys, anyio\n"
        "from answerback.store.sqlite import SQLiteStore\n"
        "async def hold():\n"
        "    async with SQLiteStore(sys.argv[1]):\n"
        "        print('ready', flush=True)\n"
        "        await anyio.to_thread.run_sync(sys.stdin.read)\n"
        "anyio.run(hold)\n"
    )
    program = _Program(db, capsys)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        refused = program("decide", "call_2", "--unknown", code=3)
        assert program.json("show", "call_2")["call"]["state"] == "indeterminate"
        owner.communicate("")
    assert f"pid {owner.pid}" in refused
    assert "runtime.decide(" in refused
