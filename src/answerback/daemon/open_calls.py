"""The open calls of this process as an observer sees them: for gauges, for the dump, for one line a call in the log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec

from answerback.actors.job import log_ids
from answerback.model import CallKey, CallRecord, CallState, Unobserved

logger = logging.getLogger("answerback.daemon.calls")

SHOWN_ID = 12
"""Digits of a call's public id in logs and feeds; twelve tell 10^7 calls apart."""


class OpenCall(msgspec.Struct, frozen=True):
    """What is kept of an open call: nothing it was asked, nothing it answered."""

    name: str
    state: CallState
    attempt: int
    observed_at: int


class OpenCalls(Unobserved):
    """Follows the calls that are not closed, and logs how each ends."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, OpenCall] = {}

    def __repr__(self) -> str:
        return f"<OpenCalls {len(self._calls)}>"

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Note where a call stands now."""
        if after.state.closed:
            self._calls.pop(after.key, None)
        else:
            self._calls[after.key] = OpenCall(after.name, after.state, after.attempt, after.observed_at)
        if before is not None and before.state is not after.state:
            _log(before, after)

    def keep(self, sessions: Collection[str]) -> None:
        """Forget the calls of sessions that are not followed any more: nobody would say how they end."""
        for key in [key for key in self._calls if key.session_id not in sessions]:
            del self._calls[key]

    def by_state(self) -> Counter[str]:
        """Return how many calls are in each state."""
        return Counter(call.state.value for call in self._calls.values())

    def oldest(self) -> dict[str, float]:
        """Return the age in seconds of the oldest call of each state that has one."""
        now = time.time()
        ages: dict[str, float] = {}
        for call in self._calls.values():
            age = max(0.0, now - call.observed_at / 1e6)
            ages[call.state.value] = max(age, ages.get(call.state.value, 0.0))
        return ages

    def facts(self) -> list[dict[str, Any]]:
        """Return one line a call, oldest first, without values."""
        ordered = sorted(self._calls.items(), key=lambda pair: pair[1].observed_at)
        return [
            {
                "call": key.digest[:SHOWN_ID],
                **log_ids(key),
                "tool": call.name,
                "state": call.state.value,
                "attempt": call.attempt,
                "age": round(max(0.0, time.time() - call.observed_at / 1e6), 3),
            }
            for key, call in ordered
        ]


def _log(before: CallRecord, after: CallRecord) -> None:
    """Write one line for an outcome, and quieter ones for the steps around it."""
    ids = {**log_ids(after.key), "call": after.public_id[:SHOWN_ID], "tool": after.name, "attempt": after.attempt}
    if before.outcome is None and after.outcome is not None:
        seconds = ((after.finished_at or 0) - after.observed_at) / 1e6
        logger.info("call finished", extra={**ids, "outcome": after.outcome_kind, "seconds": round(seconds, 3)})
    else:
        level = logging.WARNING if after.state is CallState.INDETERMINATE else logging.DEBUG
        logger.log(level, "call moved", extra={**ids, "source": before.state.value, "target": after.state.value})
