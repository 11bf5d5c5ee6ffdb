"""Retry pauses and the answers of a verify hook."""

from __future__ import annotations

import pytest

from answerback.errors import ConfigurationError
from answerback.handlers.policy import Happened, NotHappened, Retry


def test_pauses_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(attempts=9, delay=1, factor=2, max_delay=5)
    assert [retry.pause(attempt) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_a_pause_after_a_huge_number_of_attempts_is_still_the_longest() -> None:
    assert Retry(factor=10).pause(100_000) == 30


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"delay": -1}, {"factor": 0.5}, {"max_delay": float("inf")}, {"delay": float("nan")}]
)
def test_a_policy_that_cannot_work_is_refused_when_it_is_made(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Retry(**options)  # type: ignore[arg-type] # the wrong value is the point


def test_verdicts_are_values() -> None:
    assert Happened("x") == Happened("x")
    assert NotHappened() == NotHappened()
    with pytest.raises(AttributeError):
        Happened("x").output = "y"  # type: ignore[misc] # frozen is the point
