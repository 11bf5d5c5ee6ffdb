"""One case of the kill suite: who is killed where, with what tool, and how the rest of the world behaves."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

ToolKind: TypeAlias = Literal["once", "verified", "idempotent"]
Backend: TypeAlias = Literal["asyncio", "trio"]

TOOLS: tuple[ToolKind, ...] = ("once", "verified", "idempotent")
BACKENDS: tuple[Backend, ...] = ("asyncio", "trio")
COUNTS = (1, 8)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is told. Times are seconds."""

    id: str
    """Names the session, the prompt and the call ids, so it is unique within a harness."""
    tool: ToolKind
    calls: int
    backend: Backend
    step: str | None = None
    """Where the worker ends itself; None lets it finish."""
    occurrence: int = 1
    """At the how-manieth arrival at that step."""
    next_step: str | None = None
    """Where the second run ends itself too, if it comes there; the third one finishes."""
    ending: Literal["kill", "cancel"] = "kill"
    """What happens there: SIGKILL, or a cancellation around the whole `async with Runtime`."""
    bugs: tuple[str, ...] = ()
    """The bugs planted in the product's code, by name."""
    patience: float = 30.0
    """How long the turn may take before the worker gives up; nothing here takes that long."""
    settle: float = 0.05
    hold: float = 0.005
    """How long a handler takes between entry and effect."""
    slow_commit: float = 0.0
    """How long the disk lets the commits of T1 and T2 wait."""
    late_effect: float = 0.0
    """How long after its call the bank applies it, whether or not the caller still lives; 0 is at once. It is applied
    earlier when a verify hook says meanwhile that it did not happen."""
    poll_interval: float = 45.0
    submit_grace: float | None = None
    """Overrides how long an accepted result may stay listed; None is the product's own."""
    post_fault: dict[str, Any] | None = None
    """What the server does to the first POST that carries the result of the first call."""
    base_url: str = ""
    folder: str = ""

    @property
    def tool_name(self) -> str:
        """The function the script calls."""
        return f"pay_{self.tool}"

    @property
    def effects(self) -> Literal["once", "idempotent"]:
        """What the handler is declared as."""
        return "idempotent" if self.tool == "idempotent" else "once"

    def script_rule(self) -> dict[str, object]:
        """Return the rule that makes the scripted model ask for this case's calls."""
        calls = [
            {"name": self.tool_name, "arguments": {"n": n}, "call_id": f"{self.id}.{n}"} for n in range(self.calls)
        ]
        return {"when": f"^{re.escape(self.id)}$", "steps": [{"call": calls}, {"say": "All paid."}]}


class Reached(msgspec.Struct, frozen=True):
    """What a worker writes down right before it ends itself."""

    step: str
    pid: int


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a handler's own log, on stable storage before the handler goes on."""

    what: Literal["entry", "effect", "verdict"]
    session_id: str
    turn_id: str
    call_id: str
    attempt: int
    idempotency_key: str
    effects: Literal["once", "idempotent"] = "once"
    """What its handler was declared as."""
    pid: int
    verdict: str | None = None
