"""What tests of code that uses answerback need: a local Agents API, scripts for its model, and faults."""

from __future__ import annotations

from answerback.harness.faults import Fault
from answerback.harness.knobs import Knobs, knob_table
from answerback.harness.models.base import Model, ModelRequest, Result
from answerback.harness.models.script import Rule, Script, rule
from answerback.harness.models.steps import (
    Step,
    call,
    calls,
    fail,
    fail_session,
    reason,
    say,
    sleep,
)
from answerback.harness.records import LogEntry
from answerback.harness.run import Harness, run_harness
from answerback.harness.transport import StreamingASGITransport

__all__ = [
    "Fault",
    "Harness",
    "Knobs",
    "LogEntry",
    "Model",
    "ModelRequest",
    "Result",
    "Rule",
    "Script",
    "Step",
    "StreamingASGITransport",
    "call",
    "calls",
    "fail",
    "fail_session",
    "knob_table",
    "reason",
    "rule",
    "run_harness",
    "say",
    "sleep",
]
