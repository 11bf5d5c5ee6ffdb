"""Seeded schedules of faults and restarts: whatever goes wrong, the same answers come out as without any of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from answerback import CallState
from answerback.testing import Fault
from integration.simulation import Aftermath, Plan, simulate, simulate_on_disk
from integration.virtual_time import run_virtual

SEEDS = 50
MANY = 120
BACKENDS = ("asyncio", "trio")
SLOW = frozenset({"stall", "ping", "delay", "registration_gap", "admission_delay", "list_lag"})


def check(after: Aftermath, expected: Aftermath) -> None:
    """Check the promises, and that the end is that of the run without trouble."""
    assert after.answers == expected.answers
    assert after.turns == expected.turns
    assert len(after.sessions) == 1
    # P2 and P3: one outcome, the bytes that were stored, however often it was sent.
    for name, bodies in after.sent.items():
        assert {body.encode() for body in bodies} == {after.stored[name].payload}, name
    for name, record in after.stored.items():
        taken = record.state is CallState.ACKED or record.submit_status == "accepted"
        assert taken, f"{name} {record.state} {record.submit_status} {record.reason}"
    # P1 and P4: one effect, and no second start but after a hook said that nothing had happened.
    bank = after.bank
    assert sorted(bank.refunds.values()) == [1] * 5
    assert all(count <= 1 + bank.denied[key] for key, count in bank.entries.items())


def simulated(seed: int, backend: str) -> Aftermath:
    """Run one seed with and without its trouble, check it, and return what came of it."""
    plan = Plan.drawn(seed)
    expected = run_virtual(partial(simulate, plan.without_trouble()), backend)
    after = run_virtual(partial(simulate, plan), backend)
    check(after, expected)
    return after


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_schedule_of_faults_and_restarts_changes_no_answer(seed: int, backend: str) -> None:
    simulated(seed, backend)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(SEEDS, MANY))
def test_many_more_schedules_change_no_answer(seed: int, backend: str) -> None:
    simulated(seed, backend)


def gentle(plan: Plan) -> Plan:
    """Return a plan whose faults and knobs take little real time."""
    faults: list[Fault] = []
    for fault in plan.faults:
        do: dict[str, Any] = {**msgspec.to_builtins(fault.do), "headers": {}}
        quick = {name: min(value, 0.02) if name in SLOW else value for name, value in do.items()}
        faults.append(msgspec.structs.replace(fault, do=quick))
    knobs = {name: 0.02 if name in SLOW else value for name, value in plan.knobs.items()}
    return msgspec.structs.replace(plan, faults=tuple(faults), knobs=knobs, quick=True)


async def on_disk(seed: int, path: Path) -> None:
    """Run one seed on a file, against the same run in memory without trouble."""
    plan = gentle(Plan.drawn(seed))
    expected = await simulate(plan.without_trouble())
    check(await simulate_on_disk(plan, str(path)), expected)


@pytest.mark.parametrize("seed", [8, 9])
async def test_a_schedule_of_faults_and_restarts_changes_no_answer_on_disk(seed: int, tmp_path: Path) -> None:
    await on_disk(seed, tmp_path / "calls.db")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 21))
async def test_many_more_schedules_change_no_answer_on_disk(seed: int, tmp_path: Path) -> None:
    await on_disk(seed, tmp_path / "calls.db")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_schedules_are_trouble_indeed(backend: str) -> None:
    runs = [simulated(seed, backend) for seed in range(8)]
    assert sum(run.fired for run in runs) >= 16
    assert sum(run.lives > 1 for run in runs) >= 2
    assert any(record.attempt > 1 for run in runs for record in run.stored.values())
