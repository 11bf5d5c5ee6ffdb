"""Event streams: who listens, what each was not sent yet, and the response that sends it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from answerback.harness.clock import Clock
from answerback.harness.faults import Do, FaultRules
from answerback.harness.frames import Frame
from answerback.harness.randomness import Randomness
from answerback.harness.state import SessionState

logger = logging.getLogger("answerback.harness.stream")

COMMENT = b": keep-alive\n\n"
CREATION_ENDS = frozenset({"agent.session.idle", "agent.session.failed"})
"""A creation stream closes right after the first of these (observed)."""
SUBSCRIPTION_ENDS = frozenset({"agent.session.failed"})


class Subscriber:
    """One reader of one session's frames, with a bounded buffer: the turn never waits for a reader."""

    def __init__(self, session_id: str, *, ends: frozenset[str], padded: bool, limit: int) -> None:
        self.session_id = session_id
        self.ends = ends
        self.padded = padded
        self.scope: anyio.CancelScope | None = None
        self.overflowed = False
        self.closed = False
        self._limit = limit
        self._frames: deque[Frame] = deque()
        self._wake: anyio.Event | None = None

    def __repr__(self) -> str:
        state = "overflowed" if self.overflowed else "closed" if self.closed else "open"
        return f"<Subscriber {self.session_id} {state}, {len(self._frames)} waiting>"

    def put(self, frames: Iterable[Frame]) -> None:
        """Take frames to send; too many unread ones end the stream."""
        if self.closed:
            return
        self._frames.extend(frames)
        if len(self._frames) > self._limit:
            self.overflowed = True
            self._frames.clear()
            self.close()
            if self.scope is not None:
                # It may be stuck in a write its client does not read.
                self.scope.cancel()
        elif self._wake is not None:
            self._wake.set()

    def take(self) -> list[Frame]:
        """Return the frames to send now."""
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def close(self) -> None:
        """Let the stream end after what it was already given."""
        self.closed = True
        if self._wake is not None:
            self._wake.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for frames or the end; false when neither came for `seconds`."""
        if self._frames or self.closed:
            return True
        self._wake = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._wake.wait()
            return True
        return False


class Hub:
    """The subscribers of all sessions."""

    def __init__(self) -> None:
        self.draining = False
        self._subscribers: dict[str, list[Subscriber]] = {}

    def __repr__(self) -> str:
        return f"<Hub {self.count()} subscribers{', draining' if self.draining else ''}>"

    def count(self, session_id: str | None = None) -> int:
        """Count the subscribers of a session, or all."""
        if session_id is not None:
            return len(self._subscribers.get(session_id, ()))
        return sum(len(listening) for listening in self._subscribers.values())

    def add(self, subscriber: Subscriber) -> None:
        """Let a subscriber hear everything from now on."""
        if self.draining:
            subscriber.close()
        self._subscribers.setdefault(subscriber.session_id, []).append(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber."""
        listening = self._subscribers.get(subscriber.session_id, [])
        if subscriber in listening:
            listening.remove(subscriber)
        if not listening:
            self._subscribers.pop(subscriber.session_id, None)

    def publish(self, session_id: str, frames: Sequence[Frame]) -> None:
        """Hand frames to the session's subscribers."""
        for subscriber in tuple(self._subscribers.get(session_id, ())):
            subscriber.put(frames)

    def close(self, session_id: str) -> None:
        """End the session's streams."""
        for subscriber in tuple(self._subscribers.get(session_id, ())):
            subscriber.close()

    def drain(self) -> None:
        """End every stream now, whatever it is waiting for, and every later one at once."""
        self.draining = True
        for listening in tuple(self._subscribers.values()):
            for subscriber in tuple(listening):
                subscriber.close()
                if subscriber.scope is not None:
                    subscriber.scope.cancel()


def catch_up(session: SessionState, randomness: Randomness) -> list[Frame]:
    """Build what a new subscriber is sent first: items of the running turn, as they stand (a knob decides which)."""
    knobs = session.knobs
    turn = session.active
    if turn is None:
        return [session.frames.session("idle", session.snapshot())] if knobs.attach_idle else []
    if knobs.catch_up == "none":
        return []
    items = [item for item in session.items if item.turn_id == turn.id]
    chosen = [item for item in items if knobs.catch_up == "all" or randomness.chance()]
    return [session.frames.item("added", item.body, item.output_index) for item in chosen]


class EventStream(Response):
    """The response that sends one subscriber's frames until its end, its client's or the server's."""

    media_type = "text/event-stream"

    def __init__(
        self,
        subscriber: Subscriber,
        *,
        hub: Hub,
        clock: Clock,
        randomness: Randomness,
        faults: FaultRules,
        session: SessionState,
        status: int = 200,
    ) -> None:
        super().__init__(status_code=status, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._subscriber = subscriber
        self._hub = hub
        self._clock = clock
        self._randomness = randomness
        self._faults = faults
        self._session = session
        self._held: Frame | None = None
        self._broken = False

    def __repr__(self) -> str:
        return f"<EventStream {self._subscriber!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; a client that goes away ends it."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                try:
                    with anyio.CancelScope() as self._subscriber.scope:
                        await self._pump(scope, send)
                    if self._subscriber.overflowed:
                        self._break(scope)
                    if not self._broken:
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                except OSError:
                    logger.debug("the reader went away", extra={"session_id": self._session.id})
                tasks.cancel_scope.cancel()
        finally:
            self._hub.remove(self._subscriber)

    def discard(self) -> None:
        """Forget the subscriber of a stream that will not be sent."""
        self._hub.remove(self._subscriber)

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    def _break(self, scope: Scope) -> None:
        self._broken = True
        abort(scope)

    async def _pump(self, scope: Scope, send: Send) -> None:
        subscriber = self._subscriber
        keepalive = self._session.knobs.keepalive
        while True:
            frames = subscriber.take()
            if frames:
                if self._faults.on_streams or self._held is not None:
                    if await self._send_with_faults(scope, send, frames):
                        return
                else:
                    ended = next((n for n, frame in enumerate(frames) if frame.type in subscriber.ends), None)
                    await self._send(
                        send, b"".join(map(self._encode, frames if ended is None else frames[: ended + 1]))
                    )
                    if ended is not None:
                        return
            elif subscriber.closed:
                return
            elif not await subscriber.wait(keepalive):
                held, self._held = self._held, None
                await self._send(send, COMMENT if held is None else self._encode(held))

    async def _send_with_faults(self, scope: Scope, send: Send, frames: Sequence[Frame]) -> bool:
        """Send frames one by one, each through the fault rules; true when the stream is over."""
        for frame in frames:
            held, self._held = self._held, None
            outcome = await self._send_one(scope, send, frame)
            if outcome == "over":
                return True
            if held is not None:
                await self._send(send, self._encode(held))
            if outcome == "sent" and frame.type in self._subscriber.ends:
                return True
        return False

    async def _send_one(self, scope: Scope, send: Send, frame: Frame) -> str:
        encoded = self._encode(frame)
        for do in self._faults.frame(frame):
            await self._pause(send, do)
            if do.unknown_event or do.error_frame:
                await self._send(send, self._encode(self._extra(do)))
            if do.cut:
                await self._send(send, encoded[: len(encoded) // 2])
            if do.reset:
                self._break(scope)
            if do.drop or do.cut or do.reset:
                return "over"
            if do.lose:
                # A stream whose last frame is lost must still end as if it had been sent.
                return "over" if frame.type in self._subscriber.ends else "lost"
            if do.swap and frame.type not in self._subscriber.ends:
                self._held = frame
                return "held"
            encoded *= 1 + do.duplicate
        await self._send(send, encoded)
        return "sent"

    async def _pause(self, send: Send, do: Do) -> None:
        if do.stall:
            await self._clock.sleep(do.stall)
        for seconds, interval in ((do.ping, 1.0), (do.delay, self._session.knobs.keepalive)):
            left = seconds
            while left > 0:
                step = min(left, interval)
                if do.ping:
                    await self._send(send, COMMENT)
                await self._clock.sleep(step)
                left -= step
                if left > 0 and not do.ping:
                    await self._send(send, COMMENT)

    def _extra(self, do: Do) -> Frame:
        if do.error_frame:
            return self._session.frames.error(kind="server_error", code="server_error", message="A transient error.")
        kind = do.unknown_event if isinstance(do.unknown_event, str) else "agent.session.unheard_of"
        return self._session.frames.unknown(kind, self._session.snapshot())

    def _encode(self, frame: Frame) -> bytes:
        return frame.encode(padding=self._randomness.padding() if self._subscriber.padded else None)

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


class Reset(Response):
    """The answer that breaks the connection instead of answering."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Break the connection and let the server notice before the app returns."""
        abort(scope)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()


def abort(scope: Scope) -> None:
    """Break the client's connection, with what our two ways of serving put into the scope for it.

    Raises:
        RuntimeError: under another server, which offers no way to do so.
    """
    extensions = cast("dict[str, dict[str, Any]]", scope.get("extensions") or {})
    extension = extensions.get("answerback.abort")
    if extension is None:
        raise RuntimeError("this server cannot reset connections; serve the harness with answerback.harness.server")
    extension["abort"]()
