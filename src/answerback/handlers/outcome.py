"""What came of a call, in the only words that ever reach the model.

Every text depends on two things: what the tool says running it again would do (`effects`), and how certain it is
what happened. "Please try again" after a payment that may have gone through is how people are charged twice. No text
holds exception text, argument values or result values; `ref` leads from it to the local log record that has more.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Iterable
from typing import Protocol

from answerback.errors import OutputError, RetryLater, ToolError
from answerback.handlers.encoding import json_text, whole_text
from answerback.handlers.parts import content_parts
from answerback.model import Effects, Outcome

OUTPUT_LIMIT = 10_485_760
"""Characters the Agents API takes in one result, as its refusal of larger ones says."""

_LISTED_NAMES = 20
_CHECK_FIRST = "It may have taken effect: the outcome is unknown. Do not repeat it blindly; check first."


class ToolFacts(Protocol):
    """The two things about a tool that the texts depend on."""

    @property
    def name(self) -> str:
        """The name the model knows it by."""
        ...

    @property
    def effects(self) -> Effects:
        """What running it again would do."""
        ...


def new_ref() -> str:
    """Return a fresh reference such as `r-7f3a1c`, which joins a text for the model to a local log record."""
    return f"r-{secrets.token_hex(3)}"


def encode(value: object, tool: ToolFacts | None = None, *, limit: int = OUTPUT_LIMIT) -> Outcome:
    """Turn what a handler returned into an outcome: text as it is, None as no output, parts as parts, the rest as JSON.

    A result of more than `limit` characters is not sent at all, not even in part, because half a JSON value is worse
    than none. The call then ends as failed (`success: false`), though the handler did run; the text says so, says
    that the result is lost, and gives its full size. The size is known before anything is stored.

    Raises:
        OutputError: for a value that has no exact form on the wire.
    """
    if value is None:
        return Outcome("ok")
    parts = content_parts(value)
    if parts is not None:
        size = sum(len(text) for part in parts for text in part.values())
        return Outcome("ok", output=parts) if size <= limit else _too_large(tool, size, limit)
    bare = value.value if isinstance(value, enum.Enum) else value
    # str.__str__, because a subclass may print itself as something else than its characters.
    text = whole_text(str.__str__(bare)) if isinstance(bare, str) else json_text(bare)
    return Outcome("ok", output=text) if len(text) <= limit else _too_large(tool, len(text), limit)


def failed(exc: BaseException, tool: ToolFacts, ref: str) -> Outcome:
    """Say that the handler raised. A ToolError's text goes as it is; of anything else only the ref is told."""
    if isinstance(exc, ToolError):
        return Outcome("failed", error=_told(exc) or f"The function {tool.name!r} failed.")
    if isinstance(exc, OutputError):
        return Outcome("failed", error=_unsendable(exc, tool, ref), ref=ref)
    if isinstance(exc, RetryLater):
        text = f"The function {tool.name!r} cannot run now and has done nothing (ref {ref}). You may try again later."
        return Outcome("not_started", error=text, ref=ref)
    advice = (
        "It may have taken effect; do not repeat it, check first." if tool.effects == "once" else "You may retry once."
    )
    return Outcome("failed", error=f"The function {tool.name!r} failed (ref {ref}). {advice}", ref=ref)


def timed_out(tool: ToolFacts, timeout: float, *, started: bool) -> Outcome:
    """Say that the handler's time (`timeout` seconds) was over; `started` is False while it was still queued."""
    head = f"Tool {tool.name!r} timed out after {timeout:g} seconds."
    if not started:
        return Outcome("not_started", error=f"{head} It had not started, so nothing happened. You may retry once.")
    return Outcome("unknown", error=f"{head} {_after_unknown(tool)}")


def interrupted(tool: ToolFacts) -> Outcome:
    """Say that the handler was stopped between its start and its result, so that nobody knows what it did."""
    return Outcome("unknown", error=f"The function {tool.name!r} was interrupted. {_after_unknown(tool)}")


def poisoned(tool: ToolFacts, crashes: int) -> Outcome:
    """Say that the process died `crashes` times while the handler ran, and that it will not be started again."""
    head = f"The function {tool.name!r} stopped its process {crashes} times and will not be started again."
    if tool.effects == "read":
        return Outcome("failed", error=f"{head} Do not call it again with these arguments.")
    return Outcome("unknown", error=f"{head} {_CHECK_FIRST}")


def unknown_tool(name: str, enabled_names: Iterable[str]) -> Outcome:
    """Say that there is no such function, and which there are (at most 20)."""
    names = sorted(enabled_names)
    listed = ", ".join(names[:_LISTED_NAMES]) + (", ..." if len(names) > _LISTED_NAMES else "")
    offer = f" Available: {listed}." if names else ""
    return Outcome("not_started", error=f"Function {_quoted(name)} is not available now.{offer}")


def disabled(name: str) -> Outcome:
    """Say that the function exists but is switched off."""
    return Outcome("not_started", error=f"Function {_quoted(name)} is not available now.")


def arguments_rejected(text: str) -> Outcome:
    """Say what is wrong with the arguments; `text` is that of an ArgumentsError."""
    return Outcome("not_started", error=_sendable(text))


def _after_unknown(tool: ToolFacts) -> str:
    if tool.effects == "once":
        return _CHECK_FIRST
    return "The outcome is unknown, but repeating it does no harm. You may retry once."


def _too_large(tool: ToolFacts | None, size: int, limit: int) -> Outcome:
    who = f"The function {tool.name!r}" if tool is not None else "The function"
    advice = "Ask it for less." if tool is not None and tool.effects != "once" else "It has run: do not repeat it."
    return Outcome(
        "failed",
        error=f"{who} ran to its end, but its result of {size} characters is over the limit of {limit}; it was "
        f"refused and is not stored. {advice}",
    )


def _unsendable(exc: OutputError, tool: ToolFacts, ref: str) -> str:
    advice = " It has run: do not repeat it." if tool.effects == "once" else ""
    return f"The function {tool.name!r} ran to its end, but its result cannot be sent (ref {ref}): {exc.text}.{advice}"


def _quoted(name: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in name[:64])
    return f"'{_sendable(printable)}'"


def _told(exc: ToolError) -> str:
    # A subclass may have an __init__ of its own that sets no text; what it prints was meant for the model as well.
    text: object = getattr(exc, "text", None)
    return _sendable(text if isinstance(text, str) else str(exc))


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
