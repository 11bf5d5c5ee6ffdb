"""The checker sees what it is there to see: one hand-made piece of evidence for each way a promise can be broken."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
import pytest

from chaos.kill_case import Line
from chaos.kill_checker import (
    Evidence,
    Sent,
    Step,
    StoredCall,
    answered_too_early,
    check,
    most_at_once,
    outcomes_lost,
    read_sent,
)

KEY = ("sess_1", "turn_1", "call_1")
BYTES = b'{"call_id":"call_1","success":true,"output":"paid by attempt 1 of process 7"}'
OTHER = b'{"call_id":"call_1","success":true,"output":"paid by attempt 1 of process 8"}'
UNKNOWN = b'{"call_id":"call_1","success":false,"error":"nobody knows"}'


def line(what: Literal["entry", "effect", "verdict"], *, attempt: int = 1, pid: int = 7, **changes: Any) -> Line:
    fields: dict[str, Any] = {
        "session_id": KEY[0],
        "turn_id": KEY[1],
        "call_id": KEY[2],
        "idempotency_key": "k",
        **changes,
    }
    return Line(what=what, attempt=attempt, pid=pid, **fields)


def steps(*path: tuple[str, str, int], pid: int = 7) -> list[Step]:
    """Build a timeline from (source, target, attempt)."""
    return [
        Step(key=KEY, seq=seq, source=source, target=target, attempt=attempt, pid=pid)
        for seq, (source, target, attempt) in enumerate(path, start=1)
    ]


LIFE = (("", "requested", 0), ("requested", "started", 1), ("started", "finished", 1), ("finished", "submitted", 1))
REPEATED = (
    ("", "requested", 0),
    ("requested", "started", 1),
    ("started", "indeterminate", 1),
    ("indeterminate", "requested", 1),
    ("requested", "started", 2),
    ("started", "finished", 2),
)


def row(outcome: bytes | None = BYTES, **changes: Any) -> StoredCall:
    digest = None if outcome is None else hashlib.sha256(outcome).hexdigest()
    fields: dict[str, Any] = {"state": "acked", "outcome_kind": "ok", "outcome_hash": digest, **changes}
    return StoredCall(key=KEY, outcome=outcome, **fields)


def sent(element: bytes = BYTES, *, status: int = 202, key: str | None = "batch-1", **changes: Any) -> Sent:
    fields: dict[str, Any] = {"request": 1, "effect": True, **changes}
    body = hashlib.sha256(element).hexdigest()
    return Sent(key=KEY, status=status, element=element, body_sha256=body, idempotency_key=key, **fields)


def good(**changes: Any) -> Evidence:
    """Build the evidence of a call that went well, with changes."""
    well = Evidence(
        lines=[line("entry"), line("effect")], calls=[row()], steps=steps(*LIFE), sent=[sent()], status="idle"
    )
    return msgspec.structs.replace(well, **changes)


def found(evidence: Evidence, *, final: bool = True) -> list[str]:
    return [violation.promise for violation in check(evidence, final=final)]


def test_a_call_that_went_well_breaks_nothing() -> None:
    assert found(good()) == []


def test_nothing_at_all_breaks_nothing_but_the_end() -> None:
    assert found(Evidence(), final=False) == []
    assert found(Evidence()) == ["P5"]


def test_an_entry_without_a_started_row_breaks_p1() -> None:
    path = (("", "requested", 0), ("requested", "finished", 0))
    assert "P1" in found(good(steps=steps(*path), calls=[row(UNKNOWN)], sent=[sent(UNKNOWN)]))


def test_a_started_row_of_another_attempt_does_not_cover_an_entry() -> None:
    assert "P1" in found(good(lines=[line("entry", attempt=2), line("effect", attempt=2)]))


def test_a_started_row_of_another_process_does_not_cover_an_entry() -> None:
    assert "P1" in found(good(lines=[line("entry", pid=8), line("effect", pid=8)]))


def test_entering_an_attempt_twice_breaks_p1() -> None:
    assert "P1" in found(good(lines=[line("entry"), line("entry"), line("effect")]))


def test_an_idempotent_attempt_may_begin_again_in_another_process_only() -> None:
    first, again = line("entry", effects="idempotent"), line("entry", pid=8, effects="idempotent")
    effect = line("effect", pid=8, effects="idempotent")
    assert found(good(lines=[first, again, effect])) == []
    assert found(good(lines=[first, first, effect])) == ["P1"]


def test_two_outcomes_break_p2() -> None:
    path = (*LIFE[:3], ("indeterminate", "finished", 1))
    assert found(good(steps=steps(*path))) == ["P2"]


def test_a_result_that_is_sent_again_is_not_a_second_outcome() -> None:
    path = (*LIFE, ("submitted", "finished", 1), ("finished", "submitted", 1))
    assert found(good(steps=steps(*path))) == []


def test_an_outcome_that_changed_breaks_p2() -> None:
    changed = row(OTHER, outcome_hash=hashlib.sha256(BYTES).hexdigest())
    assert "P2" in found(good(calls=[changed], sent=[sent(OTHER)]))


def test_an_outcome_out_of_nowhere_breaks_p2() -> None:
    assert "P2" in found(good(steps=steps(*LIFE[:2])))


def test_an_outcome_of_an_attempt_that_was_given_up_breaks_p2() -> None:
    lines = [line("entry"), line("entry", attempt=2), line("effect", attempt=2)]
    assert found(good(lines=lines, steps=steps(*REPEATED))) == ["P2"]


def test_two_accepted_results_that_differ_break_p2() -> None:
    assert "P2" in found(good(sent=[sent(), sent(OTHER)]))


def test_a_result_that_is_not_stored_breaks_p3() -> None:
    assert found(good(sent=[sent(OTHER)])) == ["P3"]
    assert found(good(calls=[], steps=[], lines=[])) == ["P3"]


def test_a_refused_result_that_is_not_stored_breaks_p3_too() -> None:
    assert found(good(sent=[sent(OTHER, status=400, effect=False), sent()])) == ["P3"]


def test_a_substitute_is_stored_as_well() -> None:
    refused = sent(status=400, effect=False)
    assert found(good(calls=[row(substitute=UNKNOWN)], sent=[refused, sent(UNKNOWN)])) == []


def test_a_repeat_under_another_key_breaks_p3_unless_the_epoch_was_raised() -> None:
    repeated = [sent(), sent(key="batch-2")]
    assert found(good(sent=repeated)) == ["P3"]
    assert found(good(sent=repeated, calls=[row(submit_epoch=1)])) == []


def test_a_result_without_a_key_breaks_p3() -> None:
    assert found(good(sent=[sent(key=None)])) == ["P3"]


def test_a_second_entry_of_a_once_handler_needs_a_verdict() -> None:
    lines = [line("entry"), line("entry", attempt=2), line("effect", attempt=2)]
    outcome = BYTES.replace(b"attempt 1", b"attempt 2")
    evidence = good(lines=lines, steps=steps(*REPEATED), calls=[row(outcome)], sent=[sent(outcome)])
    assert found(evidence) == []
    silent = steps(*(one for one in REPEATED if one[0] != "indeterminate"))
    assert found(msgspec.structs.replace(evidence, steps=silent)) == ["P4"]


def test_a_verdict_that_was_wrong_breaks_p4() -> None:
    lines = [line("entry"), line("effect"), line("entry", attempt=2), line("effect", attempt=2)]
    outcome = BYTES.replace(b"attempt 1", b"attempt 2")
    evidence = good(lines=lines, steps=steps(*REPEATED), calls=[row(outcome)], sent=[sent(outcome)])
    assert found(evidence) == ["P4", "P4"]


def test_two_effects_of_a_once_handler_break_p4() -> None:
    assert found(good(lines=[line("entry"), line("effect"), line("effect")])) == ["P4"]


@pytest.mark.parametrize("effects", ["once", "idempotent"])
def test_another_idempotency_key_for_the_same_call_breaks_p4(effects: str) -> None:
    lines = [line("entry", effects=effects), line("effect", effects=effects, idempotency_key="other")]
    assert found(good(lines=lines)) == ["P4"]


def test_what_the_server_still_asks_for_breaks_p5() -> None:
    assert found(good(required=["call_1"])) == ["P5"]


def test_a_session_that_is_not_idle_breaks_p5() -> None:
    assert found(good(status="requires_action")) == ["P5"]


@pytest.mark.parametrize("state", ["requested", "started", "finished", "submitted"])
def test_an_open_row_breaks_p5_at_the_end_only(state: str) -> None:
    evidence = good(calls=[row(state=state)])
    assert found(evidence) == ["P5"]
    assert found(evidence, final=False) == []


def test_a_call_that_is_held_is_visible_and_one_that_is_forgotten_is_not() -> None:
    held = {"steps": steps(*LIFE[:2]), "sent": []}
    assert found(good(calls=[row(None, state="indeterminate", hold_until=1)], **held)) == []
    assert found(good(calls=[row(None, state="indeterminate")], **held)) == ["P5"]


def test_a_refused_result_was_answered_too_early() -> None:
    assert answered_too_early(good()) == []
    refused = good(sent=[sent(status=400, effect=False), sent()])
    assert [violation.promise for violation in answered_too_early(refused)] == ["asked"]


def test_a_call_that_was_closed_and_then_asked_for_was_answered_too_early() -> None:
    path = (*LIFE[:3], ("finished", "obsolete", 1), ("obsolete", "finished", 1), LIFE[3])
    assert [violation.promise for violation in answered_too_early(good(steps=steps(*path)))] == ["asked"]


def test_an_effect_without_a_stored_success_is_a_lost_outcome() -> None:
    assert outcomes_lost(good()) == []
    assert len(outcomes_lost(good(calls=[row(UNKNOWN, outcome_kind="unknown")]))) == 1
    assert len(outcomes_lost(good(calls=[]))) == 1


def test_handlers_that_overlap_are_counted() -> None:
    assert most_at_once(good(lines=[line("entry"), line("effect")] * 2)) == 1
    assert most_at_once(good(lines=[line("entry"), line("entry"), line("effect"), line("entry")])) == 2


def test_the_results_of_one_session_are_read_from_the_servers_log() -> None:
    entry = {
        "kind": "tool_result",
        "session_id": "sess_1",
        "turn_id": "turn_1",
        "call_id": "call_1",
        "status": 202,
        "body": BYTES.decode(),
        "body_sha256": "abc",
        "idempotency_key": "batch-1",
        "request": 3,
        "effect": True,
    }
    (read,) = read_sent([entry, {**entry, "session_id": "sess_2"}, {**entry, "kind": "message"}], "sess_1")
    assert (read.key, read.element, read.request) == (KEY, BYTES, 3)
