"""Follow one session's event stream across disconnects: bytes in, messages out.

The reader only reads: it never runs handlers and never waits for anything but the mailbox, whose bounded lane is the
back-pressure. A dropped stream, a 5xx, a timeout are expected; each ends in a reopened stream and a retrieve.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import anyio

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.actors.mailbox import Mailbox
from answerback.actors.messages import EventArrived, FetchRefused, StreamEnded, StreamOpened, StreamSilent
from answerback.errors import ApiError
from answerback.wire.events import decode_event
from answerback.wire.sse import FrameTooLargeError, SSEDecoder

logger = logging.getLogger("answerback.stream")

HEALTHY_AFTER = 10.0
"""Seconds a stream must have lived for the next failure to count as the first again."""


class StreamFollower:
    """Keeps one subscription of one session alive.

    Args:
        session_id: whose events to follow.
        api: the HTTP edge.
        mailbox: where events go; deltas go there only while `wanted()` says that somebody listens.
        idle_timeout: seconds without a frame after which the session is read (comments are not frames).
        slots: bounds the live streams of the process; waiting for one costs nothing, polls go on meanwhile.
        rng: randomness of the backoff.
    """

    def __init__(
        self,
        session_id: str,
        *,
        api: AgentsApi,
        mailbox: Mailbox,
        idle_timeout: float,
        slots: anyio.CapacityLimiter | None,
        rng: random.Random,
        wanted: Callable[[], bool],
    ) -> None:
        self.session_id = session_id
        self.opened = 0
        self.live = False
        self._api = api
        self._mailbox = mailbox
        self._idle_timeout = idle_timeout
        self._slots = slots
        self._rng = rng
        self._wanted = wanted
        self._backoff = Backoff()
        self._scope: anyio.CancelScope | None = None
        self._reopen = False
        self._frame_at = 0.0

    def __repr__(self) -> str:
        return f"<StreamFollower {self.session_id} {'live' if self.live else 'down'}, opened {self.opened} times>"

    def reopen(self) -> None:
        """Drop the current connection and open a new one at once: it stayed silent over something new."""
        if self._scope is not None:
            self._reopen = True
            self._scope.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        if self._slots is None:
            return
        async with self._slots:
            await self._follow()

    async def _follow(self) -> None:
        failures = 0
        while True:
            began = anyio.current_time()
            failure: ApiError | FrameTooLargeError | None = None
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                group.start_soon(self._watch)
                try:
                    await self._read()
                except (ApiError, FrameTooLargeError) as error:
                    failure = error
                group.cancel_scope.cancel()
            self.live = False
            status = failure.status if isinstance(failure, ApiError) else None
            logger.info(
                "event stream ended: %s", failure or "closed by the server", extra={"session_id": self.session_id}
            )
            if status in {401, 403, 404}:
                self._mailbox.tell(FetchRefused(status))
                return
            if self._reopen:
                self._reopen = False
                continue
            self._mailbox.tell(StreamEnded(status))
            failures = 1 if anyio.current_time() - began >= HEALTHY_AFTER else failures + 1
            retry_after = failure.retry_after if isinstance(failure, ApiError) else None
            await anyio.sleep(retry_after or self._backoff.pause(failures, self._rng))

    async def _read(self) -> None:
        """Read one connection to its end."""
        decoder = SSEDecoder()
        async with self._api.stream(self.session_id) as chunks:
            self.opened += 1
            self.live = True
            self._frame_at = anyio.current_time()
            self._mailbox.tell(StreamOpened())
            async for chunk in chunks:
                payloads = decoder.feed(chunk)
                if payloads:
                    self._frame_at = anyio.current_time()
                for payload in payloads:
                    event = decode_event(payload)
                    if event is not None and (self._wanted() or not event.is_delta):
                        await self._mailbox.put(EventArrived(event))

    async def _watch(self) -> None:
        """Tell the actor about silence. The clock is ours: comments reset the client's and are no progress."""
        self._frame_at = anyio.current_time()
        while True:
            await anyio.sleep_until(self._frame_at + self._idle_timeout)
            # A timer may fire a rounding error before its time.
            if anyio.current_time() - self._frame_at >= self._idle_timeout - 0.001:
                self._frame_at = anyio.current_time()
                self._mailbox.tell(StreamSilent())
