"""A two-lane mailbox: control messages first and never refused, stream events bounded with back-pressure."""

from __future__ import annotations

from collections import deque

import anyio

from answerback.actors.messages import Message

EVENT_LANE = 256
"""Events that may wait; a full lane stops the stream's reader, and through it the server."""


class Mailbox:
    """One reader, any number of writers. It holds hints only: throwing it away loses nothing (see `reconcile`)."""

    def __init__(self, *, capacity: int = EVENT_LANE) -> None:
        self.capacity = capacity
        self._control: deque[Message] = deque()
        self._events: deque[Message] = deque()
        self._arrived = anyio.Event()
        self._taken = anyio.Event()

    def __repr__(self) -> str:
        return f"<Mailbox {len(self._control)} control, {len(self._events)} events>"

    def __len__(self) -> int:
        return len(self._control) + len(self._events)

    def tell(self, message: Message) -> None:
        """Put a control message; never blocks, never refuses."""
        self._control.append(message)
        self._arrived.set()

    async def put(self, message: Message) -> None:
        """Put an event; wait while the lane is full."""
        while len(self._events) >= self.capacity:
            if self._taken.is_set():
                self._taken = anyio.Event()
            await self._taken.wait()
        self._events.append(message)
        self._arrived.set()

    async def get(self) -> Message:
        """Return the next message, control lane first."""
        while True:
            if self._control:
                return self._control.popleft()
            if self._events:
                message = self._events.popleft()
                self._taken.set()
                return message
            if self._arrived.is_set():
                self._arrived = anyio.Event()
            await self._arrived.wait()

    def drain_control(self) -> list[Message]:
        """Return every control message that waits, so that a burst of hints costs one reaction."""
        waiting = list(self._control)
        self._control.clear()
        return waiting

    def clear(self) -> None:
        """Forget everything: the reader restarts from the journal and a retrieve."""
        self._control.clear()
        self._events.clear()
        self._taken.set()
