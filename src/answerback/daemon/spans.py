"""OpenTelemetry spans: one a turn, one a run of a handler. Only the API is used; what is done with them is the SDK's.

The names are those of the GenAI semantic conventions 0.1.0, still "Development": they may change, so they stand here
and nowhere else. Arguments, results and exception texts are never attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from answerback.model import CallKey, CallRecord, Unobserved

INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"
TURN = "answerback.turn.id"
ATTEMPT = "answerback.attempt"
ENDING = "answerback.outcome"

CARRIER = "answerback.trace"
"""The checkpoint that keeps the trace context of the newest attempt, so that the next process can link to it."""
MOST_TURNS = 10_000
"""Open turn spans kept; a turn whose end was never seen must not stay for ever."""

Remember = Callable[[CallKey, int, Mapping[str, str]], None]


class Spans(Unobserved):
    """An observer that traces.

    Args:
        remember: keeps the trace context of an attempt beside the call; told only when a tracer records.
        provider: where the spans go; the global one by default.
    """

    def __init__(self, *, remember: Remember | None = None, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("answerback", tracer_provider=provider)
        self._remember = remember
        self._propagator = TraceContextTextMapPropagator()
        self._turns: dict[tuple[str, str], trace.Span] = {}
        self._runs: dict[tuple[CallKey, int], trace.Span] = {}

    def __repr__(self) -> str:
        return f"<Spans {len(self._turns)} turns, {len(self._runs)} runs>"

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Begin a turn's span with the first call of it that is seen."""
        if before is None and not after.state.closed:
            self._turn(after.key.session_id, after.key.turn_id)

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        """Begin a run's span, make it the current one for the handler, and link it to the attempt before it."""
        parent = trace.set_span_in_context(self._turn(key.session_id, key.turn_id), otel_context.Context())
        attributes: dict[str, str | int] = {
            OPERATION: EXECUTE_TOOL,
            CONVERSATION: key.session_id,
            TURN: key.turn_id,
            TOOL_NAME: name,
            TOOL_TYPE: "function",
            TOOL_CALL: key.call_id,
            ATTEMPT: attempt,
        }
        span = self._tracer.start_span(
            f"{EXECUTE_TOOL} {name}", context=parent, attributes=attributes, links=self._links(checkpoints)
        )
        self._runs[key, attempt] = span
        # The context variables are the handler's own copy: nothing has to be detached.
        own = trace.set_span_in_context(span)
        otel_context.attach(own)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=own)
        if carrier and span.is_recording() and self._remember is not None:
            self._remember(key, attempt, carrier)

    def left(self, key: CallKey, attempt: int, ending: str) -> None:
        """End a run's span."""
        span = self._runs.pop((key, attempt), None)
        if span is None:
            return
        span.set_attribute(ENDING, ending)
        if ending not in {"ok", "retry"}:
            span.set_attribute(ERROR_TYPE, ending)
            span.set_status(trace.StatusCode.ERROR)
        span.end()

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        """End a turn's span when an event says that it is over."""
        del kind
        if over and turn_id is not None:
            self._end(session_id, turn_id)

    def close(self) -> None:
        """End what is open."""
        for session_id, turn_id in list(self._turns):
            self._end(session_id, turn_id)

    def _turn(self, session_id: str, turn_id: str) -> trace.Span:
        """Return the span of a turn; a new one ends that of an earlier turn, whose end was not seen."""
        known = self._turns.get((session_id, turn_id))
        if known is not None:
            return known
        for earlier in [pair for pair in self._turns if pair[0] == session_id]:
            self._end(*earlier)
        while len(self._turns) >= MOST_TURNS:
            self._end(*next(iter(self._turns)))
        span = self._tracer.start_span(
            INVOKE_AGENT,
            # A turn is the server's doing: whatever happens to be current here is not its parent.
            context=otel_context.Context(),
            attributes={OPERATION: INVOKE_AGENT, PROVIDER: "openai", CONVERSATION: session_id, TURN: turn_id},
        )
        self._turns[session_id, turn_id] = span
        return span

    def _end(self, session_id: str, turn_id: str) -> None:
        span = self._turns.pop((session_id, turn_id), None)
        if span is not None:
            span.end()

    def _links(self, checkpoints: Mapping[str, Any]) -> list[trace.Link]:
        carrier = checkpoints.get(CARRIER)
        if not isinstance(carrier, dict):
            return []
        before = self._propagator.extract(cast("dict[str, str]", carrier), otel_context.Context())
        found = trace.get_current_span(before).get_span_context()
        return [trace.Link(found)] if found.is_valid else []
