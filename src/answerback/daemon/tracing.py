"""Traces, where OpenTelemetry is installed (the extra `otel`)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from answerback.daemon.spans import Remember, Spans


def tracer(remember: Remember) -> Spans | None:
    """Return an observer that traces, or None where the API is not installed."""
    if importlib.util.find_spec("opentelemetry") is None:
        return None
    from answerback.daemon.spans import Spans

    return Spans(remember=remember)
