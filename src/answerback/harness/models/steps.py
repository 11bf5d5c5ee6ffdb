"""The steps a model's turn is made of, and the short functions that build them in Python."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from answerback.harness.errors import ScriptError

Phase: TypeAlias = Literal["commentary", "final_answer"]

TURN_ERROR_CODES = (
    "context_length_exceeded",
    "max_output_tokens",
    "usage_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "billing_not_active",
    "credit_balance_exhausted",
    "rate_limit_exceeded",
    "flex_unavailable",
    "server_overloaded",
    "cyber_policy",
    "misalignment_policy_violation",
    "connection_failed",
    "server_error",
    "authentication_error",
    "invalid_request",
    "resource_not_found",
    "sandbox_error",
    "executor_version_incompatible",
    "active_turn_not_steerable",
    "request_timeout",
    "internal_error",
)
"""What `error.code` of a failed turn may be. Written down, so that serving does not import the official client."""


class Say(msgspec.Struct, frozen=True):
    """An assistant message; without a phase, the last one of a turn is its final answer."""

    text: str
    phase: Phase | None = None


class Reason(msgspec.Struct, frozen=True):
    """A reasoning item with a summary."""

    text: str


class Call(msgspec.Struct, frozen=True):
    """One function call; a step by itself, or part of `Calls`."""

    name: str
    arguments: dict[str, Any]
    call_id: str | None = None

    def identified(self, call_id: str) -> Call:
        """Return the same call under an id of one's own."""
        return Call(self.name, self.arguments, call_id)


class Calls(msgspec.Struct, frozen=True):
    """Parallel function calls; the turn goes on when all that block are answered."""

    calls: tuple[Call, ...]


class Sleep(msgspec.Struct, frozen=True):
    """A pause on the harness clock, in seconds."""

    seconds: float


class Fail(msgspec.Struct, frozen=True):
    """The failure of the turn; the session is idle afterwards."""

    code: str
    message: str


class FailSession(msgspec.Struct, frozen=True):
    """The failure of the whole session."""

    message: str


Step: TypeAlias = Say | Reason | Call | Calls | Sleep | Fail | FailSession


def say(text: str, *, phase: Phase | None = None) -> Say:
    """Let the model say something."""
    return Say(text, phase)


def reason(text: str) -> Reason:
    """Let the model reason, with this summary."""
    return Reason(text)


def call(name: str, /, **arguments: Any) -> Call:
    """Let the model call one function."""
    return Call(name, arguments)


def calls(*parallel: Call) -> Calls:
    """Let the model call several functions at once."""
    return Calls(parallel)


def sleep(seconds: float) -> Sleep:
    """Let the model take its time."""
    return Sleep(seconds)


def fail(code: str = "server_error", message: str = "The model failed.") -> Fail:
    """Let the turn fail.

    Raises:
        ScriptError: for a code that is no turn error code of the API.
    """
    if code not in TURN_ERROR_CODES:
        raise ScriptError(f"{code!r} is no turn error code; use one of {', '.join(TURN_ERROR_CODES)}")
    return Fail(code, message)


def fail_session(message: str) -> FailSession:
    """Let the whole session fail."""
    return FailSession(message)
