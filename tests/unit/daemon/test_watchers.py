"""The observers of a daemon together, and what they say of a call in the log."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import anyio
import pytest

from answerback.daemon.feed import BUFFER, Feed
from answerback.daemon.open_calls import OpenCalls
from answerback.daemon.watchers import Watchers
from answerback.model import CallRecord, CallState, Observer, Unobserved
from call_records import CANARY, KEY, life, row


class _Broken(Unobserved):
    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        raise ValueError(CANARY)


def _tell_everything(observer: Observer) -> None:
    for before, after in pairwise([None, *life()]):
        assert after is not None
        observer.moved(before, after)
    observer.entered(KEY, "refund", 1, {})
    observer.left(KEY, 1, "ok")
    observer.repeated(KEY, "restart")
    observer.resent(KEY, "retry")
    observer.crashed("sess_1", "ValueError")
    observer.frame("sess_1", "agent.session.idle", None, over=False)


def test_one_that_fails_stops_neither_the_others_nor_the_call(caplog: pytest.LogCaptureFixture) -> None:
    calls = OpenCalls()
    _tell_everything(Watchers([_Broken(), calls]))
    assert calls.by_state() == {}
    assert "ValueError" in caplog.text
    assert CANARY not in caplog.text


def test_an_outcome_is_one_line_and_an_unknown_one_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    calls = OpenCalls()
    with caplog.at_level(logging.INFO):
        for before, after in pairwise([None, *life()]):
            assert after is not None
            calls.moved(before, after)
        calls.moved(row(CallState.STARTED), row(CallState.INDETERMINATE))
    finished, unknown = caplog.records
    assert (finished.getMessage(), finished.levelname) == ("call finished", "INFO")
    facts = finished.__dict__
    assert (facts["tool"], facts["outcome"], facts["seconds"], facts["call_id"]) == ("refund", "ok", 3.0, "call_1")
    assert (unknown.levelname, unknown.__dict__["target"]) == ("WARNING", "indeterminate")
    assert CANARY not in str([record.__dict__ for record in caplog.records])


def test_open_calls_are_listed_oldest_first_until_they_close() -> None:
    calls = OpenCalls()
    requested, *_, acked = life()
    calls.moved(None, requested)
    (fact,) = calls.facts()
    assert (fact["call_id"], fact["tool"], fact["state"]) == ("call_1", "refund", "requested")
    assert CANARY not in str(fact)
    calls.moved(requested, acked)
    assert calls.facts() == []


async def test_a_reader_that_lags_loses_entries_and_holds_nobody_up() -> None:
    feed = Feed()
    async with feed.subscribe() as entries:
        for _ in range(BUFFER + 10):
            feed.crashed("sess_1", "ValueError")
        feed.close()
        with anyio.fail_after(5):
            assert len([entry async for entry in entries]) == BUFFER


async def test_a_reader_is_told_of_moves_crashes_and_events_but_of_no_delta_and_no_value() -> None:
    feed = Feed()
    _tell_everything(feed)
    async with feed.subscribe() as entries:
        _tell_everything(feed)
        feed.frame("sess_1", "agent.session.turn.output_text.delta", "turn_1", over=False)
        feed.moved(row(), row())
        feed.close()
        seen: list[dict[str, Any]] = [entry async for entry in entries]
    assert [entry["type"] for entry in seen] == ["call"] * 5 + ["crash", "event"]
    assert [entry["state"] for entry in seen[:5]] == ["requested", "started", "finished", "submitted", "acked"]
    assert CANARY not in str(seen)
