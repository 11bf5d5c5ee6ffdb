"""What tests of code that uses answerback need: a local Agents API, scripts for its model, and faults.

In an async test use `async with run_harness(script) as harness`. Where a test cannot hold an async block open (a
synchronous test, a fixture of another plugin), `run_harness_thread` serves from a thread; the pytest fixture
`agents_api` is that, with the two environment variables set.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

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
    "HarnessThread",
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
    "run_harness_thread",
    "say",
    "sleep",
]


class HarnessThread:
    """A harness that serves over TCP from a thread of its own; every method may be called from anywhere.

    Attributes:
        base_url: where it is, for `AsyncOpenAI(base_url=...)` or the variable OPENAI_BASE_URL.
        api_key: a key it accepts.
    """

    def __init__(self, harness: Harness, portal: BlockingPortal) -> None:
        self.base_url = harness.base_url
        self.api_key: str = harness.client.api_key
        self._harness = harness
        self._portal = portal

    def __repr__(self) -> str:
        return f"<HarnessThread {self.base_url}>"

    @property
    def log(self) -> list[LogEntry]:
        """Every accepted or refused input so far, in order."""
        return self._portal.call(lambda: self._harness.log)

    def set_script(self, script: Script) -> None:
        """Put a script in place, for turns that begin from now on."""
        self._portal.call(self._harness.control.set_script, script)

    def add_faults(self, *faults: Fault | Mapping[str, Any]) -> None:
        """Add fault rules."""
        self._portal.call(self._harness.faults.add, *faults)

    def advance(self, seconds: float) -> None:
        """Move the harness's time forward; sleeps, gaps and delays of it come due."""
        self._portal.call(self._harness.clock.advance, seconds)


@contextmanager
def run_harness_thread(
    script: Script | Model | None = None, *, knobs: Knobs | Mapping[str, Any] | None = None, seed: int = 0
) -> Generator[HarnessThread]:
    """Run a harness in a thread for the length of a block.

    Args:
        script: what the model says, or a model; without one it repeats what it was told.
        knobs: what differs from the default behaviour.
        seed: what every id and random choice is drawn from.

    Raises:
        ConfigurationError: for a script or knobs that cannot be used.
    """
    with start_blocking_portal("asyncio") as portal:
        block = run_harness(script, transport="tcp", knobs=knobs, seed=seed)
        with portal.wrap_async_context_manager(block) as harness:
            yield HarnessThread(harness, portal)
