"""Pauses grow to a bound and are never the same for all; crashes count for as long as they are recent."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.actors.backoff import Backoff, RestartLimit

BACKOFFS = st.builds(
    Backoff,
    initial=st.floats(0.001, 10),
    factor=st.floats(1, 10),
    maximum=st.floats(0.001, 1000),
    jitter=st.floats(0, 1),
)


@given(BACKOFFS, st.integers(-5, 10_000), st.integers())
def test_a_pause_stays_within_its_bounds_however_many_failures_there_were(
    backoff: Backoff, failures: int, seed: int
) -> None:
    pause = backoff.pause(failures, random.Random(seed))
    assert 0 <= pause <= backoff.maximum
    assert pause >= min(backoff.initial, backoff.maximum) * (1 - backoff.jitter) * 0.999


@given(BACKOFFS, st.integers(1, 100))
def test_without_jitter_no_pause_is_shorter_than_the_one_before(backoff: Backoff, failures: int) -> None:
    plain = Backoff(backoff.initial, backoff.factor, backoff.maximum, jitter=0.0)
    rng = random.Random(0)
    assert plain.pause(failures, rng) <= plain.pause(failures + 1, rng)


def test_the_default_pauses_double_from_a_quarter_second_to_half_a_minute() -> None:
    plain = Backoff(jitter=0.0)
    pauses = [plain.pause(n, random.Random(0)) for n in range(1, 10)]
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_first_failure_and_none_pause_alike() -> None:
    plain = Backoff(jitter=0.0)
    assert plain.pause(0, random.Random(0)) == plain.pause(1, random.Random(0)) == 0.25


def test_jitter_spreads_pauses_over_its_share() -> None:
    rng = random.Random(1)
    pauses = [Backoff().pause(3, rng) for _ in range(200)]
    assert 0.75 <= min(pauses) < 0.8
    assert 0.95 < max(pauses) <= 1.0


def test_the_same_seed_gives_the_same_pauses() -> None:
    assert [Backoff().pause(n, random.Random(7)) for n in range(5)] == [
        Backoff().pause(n, random.Random(7)) for n in range(5)
    ]


def test_one_crash_more_than_allowed_is_too_many() -> None:
    limit = RestartLimit(restarts=3, period=60.0)
    assert [limit.crashed(float(at)) for at in range(5)] == [True, True, True, False, False]
    assert limit.recent == 5


@pytest.mark.parametrize(("later", "allowed"), [(60.0, False), (60.5, True)])
def test_a_crash_counts_for_the_whole_period_and_no_longer(later: float, allowed: bool) -> None:
    limit = RestartLimit(restarts=1, period=60.0)
    assert limit.crashed(0.0)
    assert limit.crashed(later) is allowed


def test_no_restart_at_all_may_be_allowed() -> None:
    assert not RestartLimit(restarts=0).crashed(0.0)


@given(st.lists(st.floats(0, 20), max_size=40), st.integers(0, 5), st.floats(1, 60))
def test_a_restart_is_allowed_exactly_when_few_crashes_are_recent(
    gaps: list[float], restarts: int, period: float
) -> None:
    limit = RestartLimit(restarts, period)
    times: list[float] = []
    now = 0.0
    for gap in gaps:
        now += gap
        times.append(now)
        recent = sum(now - at <= period for at in times)
        assert limit.crashed(now) is (recent <= restarts)
        assert limit.recent == recent


def test_the_limit_says_how_much_of_it_is_used() -> None:
    limit = RestartLimit(restarts=5, period=60.0)
    limit.crashed(1.0)
    assert repr(limit) == "<RestartLimit 1 of 5 in 60 s>"
