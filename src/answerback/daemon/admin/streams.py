"""What is followed live: server-sent events, one JSON object each, with comments in between so that a cut is noticed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from answerback.daemon.admin.actions import Actions
from answerback.daemon.feed import Entry, Feed
from answerback.wire.events import Event

KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent."""

T = TypeVar("T")
Source = AbstractAsyncContextManager[MemoryObjectReceiveStream[T]]


class Streams:
    """Handlers of the read routes that do not end by themselves."""

    def __init__(self, feed: Feed, actions: Actions) -> None:
        self._feed = feed
        self._actions = actions

    def __repr__(self) -> str:
        return f"<Streams of {self._feed!r}>"

    async def tail(self, _: Request) -> Response:
        """Follow what happens in the daemon."""
        return _response(self._feed.subscribe(), lambda entry: entry)

    async def session(self, request: Request) -> Response:
        """Follow one session's events, text included."""
        ref = await self._actions.session_ref(request)
        return _response(ref.events(), event_facts)


def event_facts(event: Event) -> Entry:
    """Return what a chat shows of an event."""
    return {
        "type": event.type,
        "turn_id": event.turn_id,
        "item_id": event.item_id,
        "delta": event.delta,
        "text": event.text,
        "status": event.session.status if event.session is not None else None,
        "over": event.ends_turn,
    }


def _response(source: Source[T], facts: Callable[[T], Any]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_frames(source, facts), media_type="text/event-stream", headers=headers)


async def _frames(source: Source[T], facts: Callable[[T], Any]) -> AsyncGenerator[bytes]:
    async with source as entries:
        # At once, so that a reader knows it misses nothing from here on.
        yield b": open\n\n"
        while True:
            entry: T | None = None
            with anyio.move_on_after(KEEP_ALIVE):
                try:
                    entry = await entries.receive()
                except anyio.EndOfStream:
                    return
            yield b": alive\n\n" if entry is None else b"data: " + msgspec.json.encode(facts(entry)) + b"\n\n"
