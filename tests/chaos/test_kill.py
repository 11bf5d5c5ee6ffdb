"""A worker is killed with SIGKILL at every named step, started again, and must keep every promise.

Small form: every step x tool x number of calls x backend, one kill each. Long form (`--full`): also two kills, at all
pairs of steps, drawn over the other dimensions.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from chaos.kill_case import BACKENDS, COUNTS, TOOLS, Case
from chaos.kill_rig import Report, open_rig
from chaos.kill_steps import HOOKS, PER_POST

PATIENCE = 240.0
"""Seconds a test waits for its case, which shares the machine with all others."""

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
    cases = _selected(request.session.items)
    lanes = 2 * (os.cpu_count() or 1)
    with open_rig(tmp_path_factory.mktemp("kill"), cases, lanes=lanes) as rig, ThreadPoolExecutor(lanes) as pool:
        futures: dict[str, Future[Report]] = {case.id: pool.submit(rig.run, case) for case in cases}
        try:
            yield lambda case: futures[case.id].result(PATIENCE)
        finally:
            for future in futures.values():
                future.cancel()


def _selected(items: Sequence[pytest.Item]) -> list[Case]:
    """Return the cases of the tests that will run: a run of one case does not pay for all."""
    cases: list[Case] = []
    for item in items:
        skipped = item.get_closest_marker("skip") is not None
        if isinstance(item, pytest.Function) and item.path == Path(__file__) and not skipped:
            case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
            if isinstance(case, Case):
                cases.append(case)
    return cases


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
