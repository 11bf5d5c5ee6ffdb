"""Every cell of the recovery table: what the journal says, what the session asks for, and what follows.

`TABLE` is written out by hand and is not derived from the code. A frame's list counts for what it names and never for
what it leaves out; a GET counts for both, but only when it was sent after the last write about the call ("fresh").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Literal

import msgspec
import pytest

from answerback.actors import reconcile as table
from answerback.actors.messages import Reading
from answerback.actors.reconcile import SUBMIT_GRACE, Context, Decision, Entry, Rules, reconcile
from answerback.model import CallKey, CallRecord, CallState, Effects
from unit.actors.rows import SECOND, asked, element, key, row

NOW = 1_000_000 * SECOND
TOUCHED = 10
SENT_AT = {"frame": None, "fresh": TOUCHED + 1, "stale": TOUCHED, "older": TOUCHED - 5}
EFFECTS: tuple[Effects, ...] = ("once", "idempotent", "read")

# listed by:            frame          fresh GET      stale GET      not listed by a fresh GET
TABLE = """
no row                | observe      | observe      | observe      | -
requested             | run          | run          | run          | obsolete
waiting_approval      | -            | -            | -            | obsolete
started               | by effects   | by effects   | by effects   | obsolete_unknown
indeterminate         | as declared  | as declared  | as declared  | -
finished              | submit       | submit       | submit       | settle
substituted           | submit       | submit       | submit       | settle
ambiguous             | submit       | submit       | submit       | settle
just accepted         | -            | look later   | -            | acked
accepted              | -            | submit again | -            | acked
just acked            | look         | look later   | look         | -
acked                 | look         | submit again | look         | -
superseded            | look         | submit       | look         | -
obsolete, never run   | look         | requested    | look         | -
obsolete, with bytes  | look         | submit       | look         | -
obsolete_unknown      | look         | as reopened  | look         | -
"""
# The same with a task in this process: what is listed is left alone, a body nobody waits for is cancelled once.
RUNNING = """
requested             | -            | -            | -            | cancel
waiting_approval      | -            | -            | -            | obsolete
started               | -            | -            | -            | cancel
indeterminate         | -            | -            | -            | -
finished              | -            | -            | -            | settle
substituted           | -            | -            | -            | settle
ambiguous             | -            | -            | -            | settle
just accepted         | -            | -            | -            | acked
accepted              | -            | -            | -            | acked
just acked            | -            | -            | -            | -
acked                 | -            | -            | -            | -
superseded            | -            | -            | -            | -
obsolete, never run   | -            | -            | -            | -
obsolete, with bytes  | -            | -            | -            | -
obsolete_unknown      | -            | -            | -            | -
"""
# Declared `async`: its result is wanted although the session does not wait for it.
ASYNC = """
requested             | run          | run          | run          | obsolete
started               | by effects   | by effects   | by effects   | obsolete_unknown
indeterminate         | as declared  | as declared  | as declared  | -
finished              | submit       | submit       | submit       | submit
substituted           | submit       | submit       | submit       | submit
ambiguous             | submit       | submit       | submit       | submit
just accepted         | -            | look later   | -            | acked
accepted              | -            | submit again | -            | acked
acked                 | look         | submit again | look         | -
"""
ASYNC_RUNNING = """
requested             | -            | -            | -            | -
started               | -            | -            | -            | -
indeterminate         | -            | -            | -            | -
finished              | -            | -            | -            | -
accepted              | -            | -            | -            | -
"""

K = key()
ROWS: Mapping[str, CallRecord] = {
    **{state.value: row(state) for state in CallState},
    "substituted": row(CallState.SUBMITTED, substitute=element(K, "refused"), submit_status="none"),
    "ambiguous": row(CallState.SUBMITTED, submit_status="ambiguous", submitted_at=NOW - 60 * SECOND),
    "just accepted": row(CallState.SUBMITTED, submit_status="accepted", submitted_at=NOW - SUBMIT_GRACE + 1),
    "just acked": row(CallState.ACKED, submitted_at=NOW - SUBMIT_GRACE + 1),
    "accepted": row(CallState.SUBMITTED, submit_status="accepted", submitted_at=NOW - SUBMIT_GRACE),
    "obsolete, never run": row(CallState.OBSOLETE),
    "obsolete, with bytes": row(CallState.OBSOLETE, outcome=element(K)),
}
DECISIONS: Mapping[str, list[Decision]] = {
    "-": [],
    "observe": [table.Observe(K, asked())],
    "observe interrupted": [table.ObserveInterrupted(K, asked())],
    "run": [table.Run(K)],
    "rerun": [table.Rerun(K, crashed=False)],
    "rerun after a crash": [table.Rerun(K, crashed=True)],
    "interrupt": [table.Interrupt(K)],
    "poison": [table.Poison(K)],
    "resolve": [table.Resolve(K)],
    "submit": [table.Submit(K)],
    "submit again": [table.Submit(K, again=True)],
    "settle": [table.Settle(K)],
    "cancel": [table.Cancel(K)],
    "requested": [table.Reopen(K, CallState.REQUESTED)],
    "indeterminate": [table.Reopen(K, CallState.INDETERMINATE)],
}
INTERRUPTED = {"once": "interrupt", "idempotent": "rerun after a crash", "read": "rerun after a crash"}
REOPENED = {"once": "indeterminate", "idempotent": "requested", "read": "requested"}
UNDECIDED = {"once": "resolve", "idempotent": "rerun", "read": "rerun"}

Place = Literal["frame", "fresh", "stale", "older"]


def cells(text: str) -> Iterator[tuple[str, Place, bool, str]]:
    """Yield (row, source, listed, decision) of every cell.

    Absence from anything but a fresh GET says nothing; of an accepted result it asks a GET for a fresh one, because
    the answer may have come while the turn's last GET was under way.
    """
    for line in text.strip().splitlines():
        name, *columns = (cell.strip() for cell in line.split("|"))
        frame, fresh, stale, absent = columns
        yield name, "frame", True, frame
        yield name, "fresh", True, fresh
        yield name, "stale", True, stale
        yield name, "older", True, stale
        yield name, "fresh", False, absent
        missed = "look" if name in {"just accepted", "accepted"} else "-"
        yield name, "frame", False, "-"
        yield name, "stale", False, missed
        yield name, "older", False, missed


def context(*, effects: Effects = "once", rules: Rules | None = None, running: bool = False, **changes: Any) -> Context:
    known = rules or Rules(effects=effects, attempts=1 if effects == "once" else 3)

    def of_any_name(_: str) -> Rules:
        return known

    values: dict[str, Any] = {
        "running": frozenset({K}) if running else frozenset[CallKey](),
        "incarnation": 1,
        "complete": True,
        "now": NOW,
        "rules": of_any_name,
    }
    return Context(**values | changes)


def decide(record: CallRecord | None, place: Place, listed: bool, circumstances: Context) -> list[Decision]:
    reading = Reading({K: asked()} if listed else {}, SENT_AT[place])
    return reconcile(reading, {K: Entry(record, TOUCHED)} if record else {}, circumstances)


def expect(decision: str, effects: Effects) -> list[Decision] | str:
    if decision == "by effects":
        decision = INTERRUPTED[effects]
    if decision == "as reopened":
        decision = REOPENED[effects]
    if decision == "as declared":
        decision = UNDECIDED[effects]
    return DECISIONS.get(decision, decision)


def check(made: list[Decision], decision: str, effects: Effects) -> None:
    expected = expect(decision, effects)
    if not isinstance(expected, str):
        assert made == expected
        return
    (one,) = made
    match expected:
        case "look":
            assert isinstance(one, table.LookAgain)
            assert one.at is None
        case "look later":
            assert isinstance(one, table.LookAgain)
            assert one.at == NOW + 1
        case _:
            assert isinstance(one, table.Close)
            assert (one.key, one.target) == (K, CallState(expected))


CELLS = [
    pytest.param(
        name, place, listed, running, is_async, decision,
        id=f"{name}-{place}-{'listed' if listed else 'absent'}{'-running' if running else ''}{'-async' if is_async else ''}",
    )
    for text, running, is_async in (
        (TABLE, False, False), (RUNNING, True, False), (ASYNC, False, True), (ASYNC_RUNNING, True, True)
    )
    for name, place, listed, decision in cells(text)
]  # fmt: skip


@pytest.mark.parametrize(("name", "place", "listed", "running", "is_async", "decision"), CELLS)
def test_every_cell_of_the_table(
    name: str, place: Place, listed: bool, running: bool, is_async: bool, decision: str
) -> None:
    for effects, incarnation in product(EFFECTS, (1, 2)):
        record = ROWS.get(name)
        if record is not None:
            record = msgspec.structs.replace(record, effects=effects, incarnation=incarnation, is_async=is_async)
        made = decide(record, place, listed, context(running=running, effects=effects))
        check(made, decision, effects)


def test_the_tables_have_a_row_for_every_state() -> None:
    named = {ROWS[name].state for name, *_ in cells(TABLE) if name in ROWS}
    assert named == set(CallState)
    assert {name for name, *_ in cells(RUNNING)} == {name for name, *_ in cells(TABLE)} - {"no row"}


# --- no row ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["frame", "fresh", "stale"])
@pytest.mark.parametrize("effects", EFFECTS)
def test_a_call_without_a_row_may_have_run_when_the_store_is_not_complete(place: Place, effects: Effects) -> None:
    made = decide(None, place, True, context(complete=False, effects=effects))
    assert made == DECISIONS["observe interrupted" if effects == "once" else "observe"]


@pytest.mark.parametrize("effects", EFFECTS)
def test_a_call_another_client_may_have_started_is_not_simply_run(effects: Effects) -> None:
    made = decide(None, "fresh", True, context(suspicious=frozenset({K}), effects=effects))
    assert made == DECISIONS["observe interrupted" if effects == "once" else "observe"]
    assert decide(None, "fresh", True, context(suspicious=frozenset({key("other")}))) == DECISIONS["observe"]


def test_nothing_is_decided_where_nothing_is_asked_and_nothing_is_known() -> None:
    assert decide(None, "fresh", False, context()) == []


# --- started --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("began_as", "is_now", "decision"),
    [
        ("once", "once", "interrupt"),
        ("once", "read", "interrupt"),
        ("once", "idempotent", "interrupt"),
        ("read", "once", "interrupt"),
        ("idempotent", "once", "interrupt"),
        ("idempotent", "read", "rerun after a crash"),
        ("read", "idempotent", "rerun after a crash"),
    ],
)
def test_both_the_code_that_began_a_call_and_todays_must_allow_a_rerun(
    began_as: Effects, is_now: Effects, decision: str
) -> None:
    record = msgspec.structs.replace(ROWS["started"], effects=began_as)
    assert decide(record, "fresh", True, context(effects=is_now)) == DECISIONS[decision]


@pytest.mark.parametrize(
    ("effects", "version", "decision"),
    [
        ("idempotent", "v1", "rerun after a crash"),
        ("idempotent", "v2", "interrupt"),
        ("read", "v1", "rerun after a crash"),
        ("read", "v2", "rerun after a crash"),
        ("once", "v1", "interrupt"),
        ("once", "v2", "interrupt"),
    ],
)
def test_an_idempotent_call_is_repeated_only_by_the_code_that_began_it(
    effects: Effects, version: str, decision: str
) -> None:
    record = msgspec.structs.replace(ROWS["started"], effects=effects, handler_version="v1")
    circumstances = context(rules=Rules(effects=effects, attempts=3, version=version))
    assert decide(record, "fresh", True, circumstances) == DECISIONS[decision]


def test_a_started_call_whose_tool_is_unknown_today_is_never_repeated() -> None:
    record = msgspec.structs.replace(ROWS["started"], effects="read")
    assert decide(record, "fresh", True, context(rules=Rules())) == DECISIONS["interrupt"]


@pytest.mark.parametrize(
    ("attempts", "crashes", "decision"),
    [
        (3, 0, "rerun after a crash"),
        (3, 1, "rerun after a crash"),
        (3, 2, "poison"),
        (3, 7, "poison"),
        (1, 0, "poison"),
        (2, 0, "rerun after a crash"),
        (2, 1, "poison"),
    ],
)
def test_a_call_that_took_its_process_along_too_often_is_answered_instead(
    attempts: int, crashes: int, decision: str
) -> None:
    record = msgspec.structs.replace(ROWS["started"], effects="read", crash_count=crashes)
    circumstances = context(rules=Rules(effects="read", attempts=attempts))
    assert decide(record, "fresh", True, circumstances) == DECISIONS[decision]


@pytest.mark.parametrize("crashes", [0, 1, 5])
def test_a_once_call_is_undecided_however_often_its_process_died(crashes: int) -> None:
    record = msgspec.structs.replace(ROWS["started"], crash_count=crashes)
    assert decide(record, "fresh", True, context()) == DECISIONS["interrupt"]


# --- submitted and closed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "again"),
    [(0, False), (1, False), (SUBMIT_GRACE - 1, False), (SUBMIT_GRACE, True), (3600 * SECOND, True), (-1, True)],
)
def test_an_accepted_result_counts_as_lost_after_the_grace_and_when_the_clock_was_set_back(
    age: int, again: bool
) -> None:
    record = msgspec.structs.replace(ROWS["accepted"], submitted_at=NOW - age)
    made = decide(record, "fresh", True, context())
    expected = table.Submit(K, again=True) if again else table.LookAgain(
        "accepted result still listed", at=NOW - age + SUBMIT_GRACE
    )  # fmt: skip
    assert made == [expected]


def test_bytes_that_were_accepted_once_are_sent_again_under_a_new_key_whatever_closed_them() -> None:
    for state in (CallState.ACKED, CallState.SUPERSEDED, CallState.OBSOLETE):
        for status in ("none", "ambiguous", "accepted"):
            record = row(state, outcome=element(K), submit_status=status)
            made = decide(record, "fresh", True, context())
            assert made == [table.Submit(K, again=status == "accepted" or state is CallState.ACKED)]


def test_a_closed_call_that_ran_is_never_run_again() -> None:
    for state, effects in product((state for state in CallState if state.closed), EFFECTS):
        record = row(state, outcome=element(K), effects=effects)
        for place in SENT_AT:
            for one in decide(record, place, True, context(effects=effects)):  # type: ignore[arg-type]  # the keys are places
                assert isinstance(one, table.Submit | table.LookAgain)


# --- several calls --------------------------------------------------------------------------------------------------

A, B = key("a"), key("b")


@pytest.mark.parametrize("state", list(CallState))
@pytest.mark.parametrize("running", [True, False])
def test_other_arguments_for_a_known_call_come_alone_and_start_nothing(state: CallState, running: bool) -> None:
    reading = Reading({B: asked(), A: asked(arguments=b'{"other":1}')}, SENT_AT["fresh"])
    entries = {A: Entry(row(state, A), TOUCHED), key("c"): Entry(row(CallState.REQUESTED, key("c")), TOUCHED)}
    circumstances = context()
    if running:
        circumstances = msgspec.structs.replace(circumstances, running=frozenset({A}))
    assert reconcile(reading, entries, circumstances) == [table.Conflict(A)]


def test_calls_are_decided_each_by_its_own_row_in_the_order_of_the_list() -> None:
    reading = Reading({B: asked(), A: asked()}, SENT_AT["fresh"])
    entries = {A: Entry(row(CallState.FINISHED, A), TOUCHED), key("c"): Entry(row(CallState.REQUESTED, key("c")), 0)}
    made = reconcile(reading, entries, context())
    assert [type(one) for one in made] == [table.Observe, table.Submit, table.Close]
    assert [getattr(one, "key", None) for one in made] == [B, A, key("c")]


def test_how_fresh_a_get_is_depends_on_each_call() -> None:
    entries = {
        A: Entry(row(CallState.FINISHED, A), TOUCHED - 1),
        B: Entry(row(CallState.FINISHED, B), TOUCHED),
    }
    assert reconcile(Reading({}, TOUCHED), entries, context()) == [table.Settle(A)]


def test_one_call_id_in_two_turns_is_two_calls() -> None:
    old, new = key("same", "turn_1"), key("same", "turn_2")
    entries: dict[CallKey, Entry] = {old: Entry(row(CallState.ACKED, old), TOUCHED)}
    assert reconcile(Reading({new: asked()}, SENT_AT["fresh"]), entries, context()) == [table.Observe(new, asked())]
