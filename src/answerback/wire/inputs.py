"""The bytes of what we send: elements of `events[]`, the body around them, and the keys that name a submission."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

CANCEL = b'{"type":"agent.session.input.cancel"}'

_encode = msgspec.json.Encoder().encode


def tool_result(
    *, turn_id: str, call_id: str, success: bool, output: str | Sequence[dict[str, Any]] | None, error: str | None
) -> bytes:
    """Encode one result. Stored before it is sent and never encoded again, so that every repeat is the same bytes.

    A server accepts an identical repeat and refuses a changed one (409), which is why key order is fixed here.
    """
    element: dict[str, Any] = {
        "type": "agent.session.input.tool_result",
        "turn_id": turn_id,
        "call_id": call_id,
        "success": success,
    }
    if success:
        element["output"] = output
    else:
        element["error"] = error or "The function failed."
    return _encode(element)


def message(content: str | Sequence[dict[str, Any]]) -> bytes:
    """Encode one user message: a text, or ready `input` messages as the API takes them."""
    messages: Any = (
        [{"role": "user", "content": [{"type": "input_text", "text": content}]}]
        if isinstance(content, str)
        else list(content)
    )
    return _encode({"type": "agent.session.input.message", "input": messages})


def body(elements: Iterable[bytes]) -> bytes:
    """Join stored elements into a request body without touching their bytes."""
    return b'{"events":[' + b",".join(elements) + b"]}"


def results_key(members: Iterable[tuple[str, str, str, int]]) -> str:
    """Derive the Idempotency-Key of a batch of results from its (session, turn, call, submit_epoch) members.

    Derived, so that it needs no row and is the same after a restart with the same members, in whatever order.
    """
    return _digest("results", *("\x1f".join((s, t, c, str(epoch))) for s, t, c, epoch in sorted(members)))


def input_key(session_id: str, key: str) -> str:
    """Derive the Idempotency-Key of one input from the session and the key its sender gave it."""
    return _digest("input", session_id, key)


def _digest(*parts: str) -> str:
    return "answerback-" + hashlib.sha256("\x1e".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
