"""Stream events: one flat struct for all types, because a tagged union raises on the types of tomorrow.

Dispatch on `type`, never on a class. Lists in an event are snapshots, never deltas.
"""

from __future__ import annotations

from typing import Any

import msgspec

from answerback.wire.decoding import decode_record
from answerback.wire.records import Item, SessionSnapshot, Turn


class Event(msgspec.Struct, frozen=True):
    """One event of a session's stream."""

    type: str = ""
    event_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    session: SessionSnapshot | None = None
    turn: Turn | None = None
    item: Item | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    delta: str | None = None
    text: str | None = None
    error: Any = None
    malformed: bool = False
    """Known by its `type` only: the rest did not have the expected shape. A hint to read the session."""

    @property
    def is_delta(self) -> bool:
        """Whether nobody but a live subscriber has any use for it."""
        return self.type.endswith(".delta")

    @property
    def ends_turn(self) -> bool:
        """Whether it says that a root turn is over."""
        return self.turn is not None and self.turn.over and self.turn.subagent_id is None


class _Typed(msgspec.Struct, frozen=True):
    """The least an event is."""

    type: Any = ""


def decode_event(payload: bytes) -> Event | None:
    """Decode one frame's payload; None when it is not a JSON object (`[DONE]`, `null`, cut text)."""
    try:
        return decode_record(payload, Event)
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError:
        return None
    try:
        kind = decode_record(payload, _Typed).type
    except msgspec.ValidationError:
        return None
    return Event(type=kind if isinstance(kind, str) else "", malformed=True)
