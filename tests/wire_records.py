"""What the player of `wire_player` was sent: requests, POSTs of events, and the results in them."""

from __future__ import annotations

from typing import Any

import msgspec

from wire_session import JSON


class Request(msgspec.Struct, frozen=True):
    """One request, as it came; `at` is seconds since the player started."""

    at: float
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Post(msgspec.Struct, frozen=True):
    """One POST of events; `status` is what was answered, 0 when the connection was cut instead."""

    at: float
    session_id: str
    key: str | None
    status: int
    raw: bytes
    elements: tuple[bytes, ...]
    events: tuple[JSON, ...]


class Result(msgspec.Struct, frozen=True):
    """One `tool_result` of a POST: its exact bytes, and the POST it came in (`batch` counts its events)."""

    at: float
    session_id: str
    turn_id: str
    call_id: str
    success: bool
    output: Any
    error: str | None
    raw: bytes
    key: str | None
    status: int
    batch: int


def results_of(post: Post) -> list[Result]:
    """Return the results of one POST, in order."""
    return [
        Result(
            at=post.at, session_id=post.session_id, turn_id=event["turn_id"], call_id=event["call_id"],
            success=event["success"], output=event.get("output"), error=event.get("error"), raw=element, key=post.key,
            status=post.status, batch=len(post.events),
        )
        for element, event in zip(post.elements, post.events, strict=True)
        if event["type"].endswith("tool_result")
    ]  # fmt: skip
