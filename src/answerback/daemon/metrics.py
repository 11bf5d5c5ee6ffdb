"""Prometheus metrics of a daemon: every name in this module, an own registry, and no id ever as a label."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from answerback.daemon.open_calls import OpenCalls
from answerback.model import CallKey, CallRecord, CallState, Unobserved
from answerback.store.base import StoreHealth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
"""The label of every tool nobody handles here: such names come from a model, and there is no end of them."""
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime looks like at the moment of a scrape."""

    followed: Collection[str]
    """Ids of the sessions that live in this process."""
    sessions: Mapping[str, int]
    """Sessions by status."""
    mailbox_depth: int
    store: StoreHealth
    loop_lag: float
    """Seconds the event loop was late at its last heartbeat."""


class Metrics(Unobserved):
    """Counts what it is told, and writes it as Prometheus reads it.

    Args:
        tools: the names of the tools that are handled here; others share one label.
        calls: the open calls, for the gauges.
        figures: asked at every scrape; None while nothing runs.
    """

    def __init__(self, *, tools: Collection[str], calls: OpenCalls, figures: Callable[[], Figures | None]) -> None:
        self._tools = frozenset(tools)
        self._registry = CollectorRegistry()
        # A registry refuses the counter answerback_calls_total beside the gauge answerback_calls; the format does not.
        self._moment = CollectorRegistry()
        self._moment.register(_Moment(calls, figures))
        self._calls = self._counter("answerback_calls", "Results stored.", "tool", "outcome")
        self._durations = self._histogram(
            "answerback_call_duration_seconds", "From the request of a call to its stored result.", "tool", "outcome"
        )
        self._stages = self._histogram(
            "answerback_call_stage_seconds", "How long calls spend queued, running, sending, acknowledging.", "stage"
        )
        self._runs = self._counter("answerback_handler_runs", "Handlers entered.", "tool")
        self._suppressed = self._counter(
            "answerback_duplicates_suppressed", "Second runs and second results that did not happen.", "source"
        )
        self._resent = self._counter("answerback_results_resent", "Stored results sent again.", "reason")
        self._restarts = self._counter("answerback_actor_restarts", "Crashes of session actors.", "reason")

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._tools)} tools>"

    def text(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(_Plain(self._registry)) + generate_latest(self._moment)

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Count a stored result, and time the stage a move ends."""
        if before is None:
            return
        if before.outcome is None and after.outcome is not None:
            labels = (self._tool(after.name), after.outcome_kind or "unknown")
            self._calls.labels(*labels).inc()
            self._durations.labels(*labels).observe(_between(after.observed_at, after.finished_at))
        self._stage(before, after)

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        """Count a run of a handler."""
        del key, attempt, checkpoints
        self._runs.labels(self._tool(name)).inc()

    def repeated(self, key: CallKey, source: str) -> None:
        """Count a suppressed duplicate."""
        del key
        self._suppressed.labels(source).inc()

    def resent(self, key: CallKey, reason: str) -> None:
        """Count a resend."""
        del key
        self._resent.labels(reason).inc()

    def crashed(self, session_id: str, reason: str) -> None:
        """Count a crash."""
        del session_id
        self._restarts.labels(reason).inc()

    def _stage(self, before: CallRecord, after: CallRecord) -> None:
        match before.state, after.state:
            case CallState.REQUESTED, CallState.STARTED if after.attempt == 1:
                self._time("queued", after.observed_at, after.started_at)
            case CallState.STARTED, CallState.FINISHED:
                self._time("running", after.started_at, after.finished_at)
            case _, CallState.SUBMITTED if after.submit_status == "accepted" != before.submit_status:
                self._time("sending", after.finished_at, after.submitted_at)
            case CallState.SUBMITTED, CallState.ACKED:
                self._time("acknowledging", after.submitted_at, after.closed_at)
            case _:
                pass

    def _time(self, stage: str, began: int | None, ended: int | None) -> None:
        if began and ended:
            self._stages.labels(stage).observe(_between(began, ended))

    def _tool(self, name: str) -> str:
        return name if name in self._tools else OTHER

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=SECONDS)


class _Plain(Collector):
    """A registry without the `_created` series, which double its size and tell nothing a scrape does not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Return the families of the registry."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Moment(Collector):
    """The gauges, read when somebody asks."""

    def __init__(self, calls: OpenCalls, figures: Callable[[], Figures | None]) -> None:
        self._calls = calls
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Return the state of this moment."""
        figures = self._figures()
        if figures is None:
            return []
        self._calls.keep(figures.followed)
        states: Tally[str] = Tally({state.value: 0 for state in CallState if not state.closed})
        states.update(self._calls.by_state())
        store = figures.store
        return [
            _gauge("answerback_calls", "Open calls.", "state", states),
            _gauge("answerback_oldest_call_age_seconds", "Age of the oldest open call.", "state", self._calls.oldest()),
            _gauge("answerback_sessions", "Sessions by status.", "status", figures.sessions),
            GaugeMetricFamily("answerback_mailbox_depth", "Messages waiting.", value=figures.mailbox_depth),
            GaugeMetricFamily("answerback_loop_lag_seconds", "Lateness of the event loop.", value=figures.loop_lag),
            GaugeMetricFamily("answerback_store_queued", "Writes waiting for a commit.", value=store.queued),
            GaugeMetricFamily(
                "answerback_store_degraded",
                "Whether writes wait for trouble to pass.",
                value=store.degraded is not None,
            ),
            CounterMetricFamily(
                "answerback_store_commit_seconds",
                "Time spent in commits; over the commits, their latency.",
                value=store.commit_seconds,
            ),
            # In WAL mode with synchronous=FULL a commit is one fsync of the log; checkpoints add a few.
            CounterMetricFamily("answerback_store_fsyncs", "Commits, each an fsync of the log.", value=store.commits),
            CounterMetricFamily("answerback_store_statements", "Statements committed.", value=store.statements),
        ]


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family


def _between(began: int, ended: int | None) -> float:
    return max(0.0, ((ended or began) - began) / 1e6)
