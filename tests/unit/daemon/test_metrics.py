"""Metrics: the names that dashboards are built on, and nothing in them that names a call or a value."""

from __future__ import annotations

from itertools import pairwise

from answerback.daemon.metrics import Figures, Metrics
from answerback.daemon.open_calls import OpenCalls
from answerback.model import CallKey, CallState
from answerback.store.base import StoreHealth
from call_records import CANARY, KEY, life, row


def _figures() -> Figures:
    return Figures(
        followed=["sess_1"],
        sessions={"idle": 2, "passivated": 7},
        mailbox_depth=3,
        store=StoreHealth(commits=5, commit_seconds=0.25),
        loop_lag=0.01,
    )


def _watched() -> tuple[Metrics, OpenCalls]:
    calls = OpenCalls()
    return Metrics(tools=["refund"], calls=calls, figures=_figures), calls


def _lines(metrics: Metrics) -> dict[str, float]:
    found = [line.rsplit(" ", 1) for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in found}


def test_a_call_is_counted_and_timed_by_tool_outcome_and_stage() -> None:
    metrics, _ = _watched()
    for before, after in pairwise([None, *life()]):
        assert after is not None
        metrics.moved(before, after)
    metrics.entered(KEY, "refund", 1, {})
    lines = _lines(metrics)
    assert lines['answerback_calls_total{outcome="ok",tool="refund"}'] == 1
    assert lines['answerback_call_duration_seconds_sum{outcome="ok",tool="refund"}'] == 3
    assert lines['answerback_handler_runs_total{tool="refund"}'] == 1
    stages = {stage: lines[f'answerback_call_stage_seconds_sum{{stage="{stage}"}}'] for stage in
              ("queued", "running", "sending", "acknowledging")}  # fmt: skip
    assert stages == {"queued": 1, "running": 2, "sending": 1, "acknowledging": 1}


def test_a_result_that_is_sent_again_is_no_second_result() -> None:
    metrics, _ = _watched()
    _, _, finished, submitted, acked = life()
    metrics.moved(acked, finished)
    metrics.moved(finished, submitted)
    metrics.resent(KEY, "required_again")
    metrics.repeated(KEY, "restart")
    lines = _lines(metrics)
    assert not [name for name in lines if name.startswith("answerback_calls_total")]
    assert lines['answerback_results_resent_total{reason="required_again"}'] == 1
    assert lines['answerback_duplicates_suppressed_total{source="restart"}'] == 1


def test_names_a_model_made_up_share_one_label() -> None:
    metrics, _ = _watched()
    for number in range(50):
        _, started, finished, *_ = life(CallKey("sess_1", "turn_1", f"c{number}"), name=f"made_up_{number}")
        metrics.moved(started, finished)
    assert _lines(metrics)['answerback_calls_total{outcome="ok",tool="other"}'] == 50
    assert "made_up" not in metrics.text().decode()


def test_gauges_tell_the_moment_and_forget_sessions_that_are_not_followed() -> None:
    metrics, calls = _watched()
    calls.moved(None, row())
    calls.moved(None, row(CallState.INDETERMINATE, key=CallKey("sess_1", "turn_1", "call_2")))
    calls.moved(None, row(key=CallKey("sess_gone", "turn_1", "call_1")))
    lines = _lines(metrics)
    assert lines['answerback_calls{state="requested"}'] == 1
    assert lines['answerback_calls{state="indeterminate"}'] == 1
    assert lines['answerback_calls{state="started"}'] == 0
    assert lines['answerback_oldest_call_age_seconds{state="requested"}'] > 0
    assert lines['answerback_sessions{status="passivated"}'] == 7
    assert lines["answerback_mailbox_depth"] == 3
    assert lines["answerback_store_commit_seconds_total"] == 0.25
    assert lines["answerback_store_fsyncs_total"] == 5


def test_crashes_are_counted_by_class_and_no_text_names_an_id_or_a_value() -> None:
    metrics, calls = _watched()
    metrics.crashed("sess_1", "ValueError")
    for before, after in pairwise([None, *life()]):
        assert after is not None
        metrics.moved(before, after)
        calls.moved(before, after)
    text = metrics.text().decode()
    assert 'answerback_actor_restarts_total{reason="ValueError"} 1.0' in text
    assert not [word for word in (CANARY, "sess_1", "turn_1", "call_1", KEY.digest[:6]) if word in text]


def test_nothing_runs_and_the_counters_are_still_there() -> None:
    metrics = Metrics(tools=[], calls=OpenCalls(), figures=lambda: None)
    metrics.resent(KEY, "retry")
    assert "answerback_results_resent_total" in metrics.text().decode()
