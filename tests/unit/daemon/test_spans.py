"""Spans: names, parents and links as another tool reads them through the SDK, without a value."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from answerback.daemon.spans import CARRIER, Spans
from answerback.model import CallKey
from call_records import CANARY, KEY, row


class Traced:
    """Spans with somewhere to go."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.kept: dict[tuple[CallKey, int], Mapping[str, str]] = {}
        self.spans = Spans(remember=self._keep, provider=provider)

    def _keep(self, key: CallKey, attempt: int, carrier: Mapping[str, str]) -> None:
        self.kept[key, attempt] = carrier

    def enter(self, attempt: int, checkpoints: Mapping[str, Any] | None = None) -> trace.Span:
        """Enter a handler in context variables of its own; return what is current there."""
        own = contextvars.copy_context()
        own.run(self.spans.entered, KEY, "refund", attempt, checkpoints or {})
        return own.run(trace.get_current_span)

    @property
    def finished(self) -> list[ReadableSpan]:
        """The ended spans, in the order of their ends."""
        return list(self._exporter.get_finished_spans())


def _own(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_run_is_a_child_of_its_turn_and_current_inside_the_handler_only(traced: Traced) -> None:
    traced.spans.moved(None, row())
    inside = traced.enter(1)
    assert not trace.get_current_span().get_span_context().is_valid
    traced.spans.left(KEY, 1, "ok")
    traced.spans.frame("sess_1", "agent.session.turn.completed", "turn_1", over=True)
    run, turn = traced.finished
    assert (run.name, turn.name) == ("execute_tool refund", "invoke_agent")
    assert run.parent is not None
    assert run.parent.span_id == _own(turn).span_id
    assert _own(run).span_id == inside.get_span_context().span_id
    assert run.attributes is not None
    assert run.attributes["gen_ai.operation.name"] == "execute_tool"
    assert run.attributes["gen_ai.tool.name"] == "refund"
    assert run.attributes["gen_ai.tool.call.id"] == "call_1"
    assert run.attributes["gen_ai.conversation.id"] == "sess_1"
    assert turn.attributes is not None
    assert turn.attributes["gen_ai.operation.name"] == "invoke_agent"


def test_an_attempt_after_a_restart_links_to_the_one_that_died() -> None:
    before, after = Traced(), Traced()
    died = before.enter(1)
    carrier = before.kept[KEY, 1]
    after.enter(2, {CARRIER: dict(carrier)})
    after.spans.left(KEY, 2, "ok")
    (run,) = after.finished
    (link,) = run.links
    assert link.context.span_id == died.get_span_context().span_id
    assert link.context.trace_id == died.get_span_context().trace_id
    assert _own(run).trace_id != link.context.trace_id


@pytest.mark.parametrize("kept", [None, "text", {}, {"traceparent": "nonsense"}])
def test_a_trace_context_nobody_can_read_is_no_link(traced: Traced, kept: Any) -> None:
    traced.enter(2, {CARRIER: kept})
    traced.spans.left(KEY, 2, "ok")
    assert traced.finished[0].links == ()


@pytest.mark.parametrize(("ending", "bad"), [("ok", False), ("retry", False), ("failed", True), ("interrupted", True)])
def test_a_run_that_ends_badly_is_an_error_by_its_kind_alone(traced: Traced, ending: str, bad: bool) -> None:
    traced.enter(1)
    traced.spans.left(KEY, 1, ending)
    (run,) = traced.finished
    assert run.status.is_ok is not bad
    assert run.attributes is not None
    assert run.attributes.get("error.type") == (ending if bad else None)
    assert CANARY not in run.to_json()


def test_a_turn_whose_end_nobody_saw_ends_with_the_next_or_at_the_close(traced: Traced) -> None:
    traced.spans.moved(None, row())
    traced.spans.moved(None, row(key=CallKey("sess_1", "turn_2", "call_1")))
    assert [span.name for span in traced.finished] == ["invoke_agent"]
    traced.spans.close()
    assert len(traced.finished) == 2


def test_without_an_sdk_nothing_is_kept() -> None:
    kept: list[CallKey] = []

    def keep(key: CallKey, attempt: int, carrier: Mapping[str, str]) -> None:
        kept.append(key)

    spans = Spans(remember=keep, provider=trace.NoOpTracerProvider())
    contextvars.copy_context().run(spans.entered, KEY, "refund", 1, {})
    spans.left(KEY, 1, "ok")
    assert kept == []
