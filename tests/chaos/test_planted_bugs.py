"""Each bug, planted in the product's code, is caught by the check named here; without it the same run is clean."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from chaos.kill_case import BACKENDS, Backend, Case
from chaos.kill_checker import Evidence, Violation, answered_too_early, most_at_once, one_outcome, outcomes_lost
from chaos.kill_rig import Report, Rig, open_rig, read_calls, read_steps
from chaos.kill_worker import STORE
from chaos.planted_bugs import BUGS
from chaos.side_by_side import LANES, selected, side_by_side

OVERTAKEN = "START overtakes T0"
UNHEARD = {"status": 503, "apply": False}
"""The server did not take the POST and says so; it is sent again."""
LOST = {"status": 202, "apply": False}
"""The server says it accepted the POST, and lost it."""


class Scenario(msgspec.Struct, frozen=True):
    """The same run without and with a bug."""

    clean: Case
    buggy: Case


Outcome: TypeAlias = tuple[Report, Report]
Reports: TypeAlias = Callable[[Scenario], Outcome]


def planted(
    bug: str, *, beside: tuple[str, ...] = (), gives_up: float | None = None, **options: Any
) -> pytest.MarkDecorator:
    """Parametrise a test with the runs of a bug, on both backends.

    Args:
        bug: the bug's name.
        beside: bugs that provoke it, planted in both runs.
        gives_up: seconds after which the run with the bug is given up: it does not come to an end.
        options: what both runs are told.
    """

    def case(backend: Backend, *, buggy: bool) -> Case:
        name = f"{bug}.{backend}.{'bug' if buggy else 'clean'}".replace(" ", "-")
        told = Case(id=name, backend=backend, bugs=(*beside, bug) if buggy else beside, **options)
        return told if gives_up is None or not buggy else msgspec.structs.replace(told, patience=gives_up)

    scenarios = [Scenario(case(backend, buggy=False), case(backend, buggy=True)) for backend in BACKENDS]
    return pytest.mark.parametrize("scenario", scenarios, ids=BACKENDS)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Reports]:
    """Run the selected scenarios side by side; a test waits for its own."""
    scenarios: list[Scenario] = list(selected(request, "scenario"))
    cases = [case for scenario in scenarios for case in (scenario.clean, scenario.buggy)]
    with (
        open_rig(tmp_path_factory.mktemp("bugs"), cases, lanes=LANES) as rig,
        side_by_side(cases, rig.run, name=lambda case: case.id) as result,
    ):
        yield lambda scenario: (result(scenario.clean), result(scenario.buggy))


def _promises(violations: Sequence[Violation]) -> set[str]:
    return {violation.promise for violation in violations}


def _clean(report: Report) -> None:
    assert report.reached
    assert report.finished, "the run without the bug did not end"
    assert [str(violation) for violation in report.violations] == []


@planted("skip the STARTED wait", tool="once", calls=1, step="entered", slow_commit=1.0)
def test_skipping_the_wait_for_the_started_row_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert "P1" in _promises(buggy.violations)
    assert any("without a STARTED row" in violation.text for violation in buggy.violations)


@planted(OVERTAKEN, tool="idempotent", calls=8)
def test_a_start_that_overtakes_its_observation_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert "P1" in _promises(buggy.violations)
    assert any("entered 2 times" in violation.text for violation in buggy.violations)


@planted("START count ignored", beside=(OVERTAKEN,), tool="once", calls=8)
def test_entering_a_handler_whose_start_did_not_apply_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    # A `once` handler that reads the count is safe even when its START was overtaken: the second lock on the door.
    _clean(clean)
    assert {"P1", "P4"} <= _promises(buggy.violations)


@planted("submit before commit", tool="once", calls=1, step="accepted", slow_commit=1.0)
def test_sending_a_result_before_its_commit_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert "P3" in _promises(buggy.violations)


@planted("new key per retry", tool="once", calls=1, post_fault=UNHEARD)
def test_a_new_key_for_every_retry_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert len(clean.end.sent) == 2, "the result was to be sent twice"
    assert "P3" in _promises(buggy.violations)
    assert any("under 2 keys" in violation.text for violation in buggy.violations)


@planted("rerun on resubmit", tool="once", calls=1, post_fault=LOST, submit_grace=0.2, poll_interval=0.1, gives_up=3.0)
def test_running_a_handler_again_to_resubmit_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert [sent.effect for sent in clean.end.sent] == [False, True], "the result was to be lost and sent again"
    assert "P4" in _promises(buggy.violations)


@planted("sequential handlers", tool="once", calls=8, hold=0.5)
def test_running_handlers_one_after_another_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert most_at_once(clean.end) == 8
    assert most_at_once(buggy.end) < 8


@planted("verify before settle", tool="verified", calls=1, step="effect", late_effect=2.0, settle=4.0)
def test_asking_the_verify_hook_before_things_settled_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    assert any("effect happened more than once" in violation.text for violation in buggy.violations)


@planted("writer killed before handlers", tool="once", calls=1, step="entered", ending="cancel", hold=0.2)
def test_closing_the_writer_before_the_handlers_are_done_is_caught(scenario: Scenario, reports: Reports) -> None:
    clean, buggy = reports(scenario)
    _clean(clean)
    # Looked at when the cancelled process had ended: what its handler did must be known then.
    assert outcomes_lost(clean.middle) == []
    assert outcomes_lost(buggy.middle) != []


@pytest.fixture
def rig(tmp_path: Path, scenario: Scenario) -> Generator[Rig]:
    """Run a rig of its own for one scenario, on a server that takes its time to register a call it has announced.

    Whoever subscribes late is told of the announcement too.
    """
    knobs = {"registration_gap": "1.0", "catch_up": "all"}
    with open_rig(tmp_path, [scenario.clean, scenario.buggy], lanes=2, knobs=knobs) as opened:
        yield opened


@planted("answer by item.added", tool="once", calls=8)
def test_answering_by_item_added_is_caught(scenario: Scenario, rig: Rig) -> None:
    with ThreadPoolExecutor(2) as pool:
        clean, buggy = pool.map(rig.run, (scenario.clean, scenario.buggy))
    _clean(clean)
    assert answered_too_early(clean.end) == []
    assert answered_too_early(buggy.end) != []


@planted("drop the token CAS", tool="idempotent", calls=1)
def test_dropping_the_token_of_an_attempt_is_caught(scenario: Scenario, rig: Rig, tmp_path: Path) -> None:
    found: list[list[Violation]] = []
    for case in (scenario.clean, scenario.buggy):
        folder = tmp_path / case.id
        folder.mkdir()
        told = msgspec.structs.replace(case, folder=str(folder))
        ended = rig.run_program("stale", msgspec.json.encode(told), output=folder / "worker.log")
        assert (ended.signal, ended.code) == (0, 0)
        found.append(one_outcome(Evidence(calls=read_calls(folder / STORE), steps=read_steps(folder / STORE))))
    clean, buggy = found
    assert clean == []
    assert _promises(buggy) == {"P2"}


def test_every_planted_bug_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [bug for bug in BUGS if f'"{bug}"' not in source] == []
