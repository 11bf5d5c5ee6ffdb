"""A server for the recovery model: it lists calls, takes results, repeats itself, forgets, and is believed never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from answerback.actors.messages import Asked
from answerback.errors import ApiError
from answerback.model import CallKey
from unit.actors.rows import SECOND, SESSION


class Clock:
    """Wall time in microseconds, and a count that orders everything that happens."""

    def __init__(self) -> None:
        self.now = 1_000_000 * SECOND
        self.ticks = 0

    def tick(self) -> int:
        """Advance the count."""
        self.ticks += 1
        return self.ticks


class ModelServer:
    """One session as the service keeps it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lagging: dict[CallKey, int] = {}
        self._bodies: dict[str, bytes] = {}
        self._listed_from: dict[CallKey, int] = {}
        self.asked: dict[CallKey, Asked] = {}
        self.announced: dict[CallKey, Asked] = {}
        """Called by the model, not registered yet."""
        self.pending: set[CallKey] = set()
        self.results: dict[CallKey, bytes] = {}
        self.over: set[str] = set()
        self.losses: Counter[CallKey] = Counter()
        self.too_large: set[CallKey] = set()
        """Calls whose first result the API definitely refuses."""
        self.frames: list[Mapping[CallKey, Asked]] = []

    def announce(self, key: CallKey, asked: Asked) -> None:
        """Let the model call a function."""
        self.announced[key] = asked

    def register(self, key: CallKey) -> None:
        """List an announced call, and say so in a frame."""
        asked = self.announced.pop(key)
        if key.turn_id not in self.over:
            self.asked[key] = asked
            self._list(key)

    def lose(self, key: CallKey) -> None:
        """Forget a result that was accepted: the call is required again."""
        del self.results[key]
        self._lagging.pop(key, None)
        self.losses[key] += 1
        self._list(key)

    def _list(self, key: CallKey) -> None:
        self.pending.add(key)
        self._listed_from[key] = self._clock.tick()
        self._frame()

    def end_turn(self, turn_id: str) -> None:
        """End a turn with whatever it still waits for."""
        self.over.add(turn_id)
        gone = {key for key in (*self.pending, *self._lagging) if key.turn_id == turn_id}
        self.pending -= gone
        for key in gone:
            self._lagging.pop(key, None)
        self._frame()

    def _frame(self) -> None:
        self.frames.append(self.listing())

    def listing(self) -> dict[CallKey, Asked]:
        """Return what a GET shows in this moment; an accepted call may be shown for a while."""
        lagging = {key for key, until in self._lagging.items() if self._clock.now < until}
        return {key: self.asked[key] for key in self.asked if key in self.pending or key in lagging}

    def was_unlisted_since(self, key: CallKey, tick: int) -> bool:
        """Tell whether there was a moment after `tick` in which the call was not required."""
        return key not in self.pending or self._listed_from[key] > tick

    def take(self, body: bytes, idempotency_key: str, *, lag: int) -> ApiError | None:
        """Answer a POST: all of it or nothing. A key that was seen before has no second effect."""
        seen = self._bodies.get(idempotency_key)
        if seen is not None:
            return None if seen == body else _error(409, "the key came with another body")
        elements = {_key(raw): bytes(raw) for raw in msgspec.json.decode(body, type=_Body).events}
        for key, element in elements.items():
            refused = self._refuses(key, element, alone=len(elements) == 1)
            if refused is not None:
                return refused
        self._bodies[idempotency_key] = body
        for key, element in elements.items():
            if key in self.pending:
                self.pending.discard(key)
                self.results[key] = element
                self._lagging[key] = self._clock.now + lag
        self._frame()
        return None

    def _refuses(self, key: CallKey, element: bytes, *, alone: bool) -> ApiError | None:
        if key in self.too_large and b'"success":true' in element:
            return _error(413 if alone else 400, "too large")
        if key in self.results:
            return None if self.results[key] == element else _error(409, "another result was accepted")
        if key in self.pending:
            return None
        if key.turn_id in self.over:
            return _error(409, "the turn is over")
        return _error(400, f"Unknown pending tool call: {key.call_id}")


class _Body(msgspec.Struct):
    events: list[msgspec.Raw]


class _Element(msgspec.Struct):
    turn_id: str
    call_id: str


def _key(raw: msgspec.Raw) -> CallKey:
    element = msgspec.json.decode(raw, type=_Element)
    return CallKey(SESSION, element.turn_id, element.call_id)


def _error(status: int, text: str) -> ApiError:
    return ApiError(text, status=status, code="invalid_request_error" if status == 400 else "conflict_error")


def lost_answer(status: int | None) -> ApiError:
    """Build what the client sees of a cut connection (None) or a failing gateway."""
    return ApiError("no clear answer", status=status)
