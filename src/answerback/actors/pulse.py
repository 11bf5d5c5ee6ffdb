"""What a session does by the clock: it is read now and then, and passivated when nothing happened for long enough.

A lost frame leaves no other trace, so every session is read every `poll_interval` seconds. One without a stream has
nothing but these reads: while a turn is open they come quickly at first and slower the longer nothing changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from answerback.actors.backoff import Backoff
from answerback.actors.live import LiveSession
from answerback.actors.messages import ReadAgain
from answerback.actors.settings import ActorSettings

FIRST_PAUSE = 0.5
"""Seconds between the first reads of a session that is at work and has no stream."""

ROUNDING = 0.001
BREATH = 0.05
"""Seconds in which an actor reads what waits in its mailbox."""


class Pulse:
    """The clock of one session's actor.

    Args:
        live: the session.
        settings: `poll_interval` and `passivate_after`.
        streaming: whether a stream of the session is open.
        passivate: called once, when the session was quiet for `passivate_after` seconds.
        rng: randomness of the pauses.
    """

    def __init__(
        self,
        live: LiveSession,
        *,
        settings: ActorSettings,
        streaming: Callable[[], bool],
        passivate: Callable[[LiveSession], None],
        rng: random.Random,
    ) -> None:
        self._live = live
        self._settings = settings
        self._streaming = streaming
        self._passivate = passivate
        self._rng = rng
        self._pace = Backoff(initial=FIRST_PAUSE, maximum=settings.poll_interval)
        self._began_work = anyio.Event()
        self._seen: object = None
        self._unchanged = 0

    def __repr__(self) -> str:
        return f"<Pulse {self._live.session_id} {'at work' if self._at_work else 'slow'}>"

    def beat(self) -> None:
        """Take note of what the session is like after a message."""
        if not self._live.quiet:
            self._live.moved_at = anyio.current_time()
        seen = (self._live.state.status, frozenset(self._live.state.asked))
        if seen != self._seen:
            self._seen = seen
            self._unchanged = 0
            if self._at_work:
                self._began_work.set()

    @property
    def _at_work(self) -> bool:
        return self._live.state.status in {"in_progress", "requires_action"} and not self._streaming()

    async def poll(self, *, first_look: bool) -> None:
        """Ask for reads until cancelled.

        Args:
            first_look: whether no stream is about to ask for the first one.
        """
        if first_look:
            self._live.mailbox.tell(ReadAgain("first look"))
        while True:
            self._began_work = anyio.Event()
            pause = self._settings.poll_interval
            if self._at_work:
                self._unchanged += 1
                pause = self._pace.pause(self._unchanged, self._rng)
            with anyio.move_on_after(pause) as waiting:
                await self._began_work.wait()
            if waiting.cancelled_caught:
                self._live.mailbox.tell(ReadAgain("poll"))

    async def passivate(self) -> None:
        """Wait until the session was quiet for long enough, then let it be passivated."""
        while True:
            left = self._live.moved_at + self._settings.passivate_after - anyio.current_time()
            # A timer may fire a rounding error before its time.
            if left > ROUNDING:
                await anyio.sleep(left)
            elif len(self._live.mailbox):
                # What it says may be news; it is read at once.
                await anyio.sleep(BREATH)
            elif self._live.quiet:
                self._passivate(self._live)
                return
            else:
                self._live.moved_at = anyio.current_time()
