"""A worker is killed with SIGKILL at every named step, started again, and must keep every promise.

Small form: every step x tool x number of calls x backend, one kill each. Long form (`--full`): also two kills, at all
pairs of steps, drawn over the other dimensions.
"""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable, Generator
from typing import TypeAlias

import pytest

from chaos.kill_case import BACKENDS, COUNTS, TOOLS, Case
from chaos.kill_rig import Report, open_rig
from chaos.kill_steps import HOOKS, PER_POST
from chaos.side_by_side import LANES, selected, side_by_side

Reports: TypeAlias = Callable[[Case], Report]


def matrix() -> list[Case]:
    """List every step x tool x number of calls x backend."""
    return [
        Case(
            id=f"{step}.{tool}.{calls}.{backend}",
            step=step,
            tool=tool,
            calls=calls,
            backend=backend,
            occurrence=occurrence(step, calls),
        )
        for step, tool, calls, backend in itertools.product(HOOKS, TOOLS, COUNTS, BACKENDS)
    ]


def occurrence(step: str, calls: int) -> int:
    """Of parallel calls, some have passed the step and some have not; one POST carries them all."""
    return 1 if calls == 1 or step in PER_POST else 5


def pairs() -> list[Case]:
    """List every pair of steps, each with a drawn tool, number of calls and backend."""
    rng = random.Random(20)
    drawn: list[Case] = []
    for first, second in itertools.product(HOOKS, HOOKS):
        tool, calls, backend = rng.choice(TOOLS), rng.choice(COUNTS), rng.choice(BACKENDS)
        drawn.append(
            Case(
                id=f"{first}.{second}.{tool}.{calls}.{backend}",
                step=first,
                occurrence=rng.randint(1, occurrence(first, calls)),
                next_step=second,
                tool=tool,
                calls=calls,
                backend=backend,
            )
        )
    return drawn


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Reports]:
    """Run the selected cases of this module side by side; a test waits for its own."""
    cases: list[Case] = list(selected(request, "case"))
    with (
        open_rig(tmp_path_factory.mktemp("kill"), cases, lanes=LANES) as rig,
        side_by_side(cases, rig.run, name=lambda case: case.id) as result,
    ):
        yield result


@pytest.mark.parametrize("case", matrix(), ids=lambda case: case.id)
def test_a_worker_killed_at_any_step_keeps_every_promise(case: Case, reports: Reports) -> None:
    _check(reports(case))


@pytest.mark.full
@pytest.mark.parametrize("case", pairs(), ids=lambda case: case.id)
def test_a_worker_killed_twice_keeps_every_promise(case: Case, reports: Reports) -> None:
    _check(reports(case))


def _check(report: Report) -> None:
    assert report.reached, f"the worker never came to {report.case.step}: {report.first}"
    assert report.first.signal == signal.SIGKILL
    assert report.last.signal == 0
    assert report.last.code == 0, "see worker.log in the case's folder"
    assert report.finished, "the turn did not come to its end"
    assert [str(violation) for violation in report.violations] == []


def test_the_matrix_has_every_combination_once() -> None:
    cases = matrix()
    assert len({case.id for case in cases}) == len(cases) == len(HOOKS) * len(TOOLS) * len(COUNTS) * len(BACKENDS)
