"""Stream events as they are built once and sent to many."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from answerback.harness.randomness import Randomness
from answerback.harness.records import JSON


class Frame:
    """One stream event, encoded at most once; padding is added to the bytes, per subscriber."""

    __slots__ = ("_encoded", "data", "session_id")

    def __init__(self, data: JSON, *, session_id: str) -> None:
        self.data = data
        self.session_id = session_id
        self._encoded: bytes | None = None

    def __repr__(self) -> str:
        return f"<Frame {self.type} {self.data['event_id']}>"

    @property
    def type(self) -> str:
        """The event's type."""
        return str(self.data["type"])

    def call_ids(self) -> Iterable[str]:
        """Yield the calls the frame speaks of: its item's, or those its snapshot requires."""
        item = self.data.get("item")
        if item is not None and "call_id" in item:
            yield item["call_id"]
        session = self.data.get("session")
        if session is not None:
            for action in session["required_actions"]:
                if "call_id" in action:
                    yield action["call_id"]

    def encode(self, *, padding: str | None) -> bytes:
        """Return the SSE block: `event:` and `data:` and a blank line, never an `id:`.

        An `id:` followed by a keep-alive comment makes the official decoder dispatch an empty event and die.
        """
        encoded = self._encoded
        if encoded is None:
            encoded = self._encoded = msgspec.json.encode(self.data)
        if padding is not None:
            encoded = encoded[:-1] + b',"obfuscation":"' + padding.encode() + b'"}'
        return b"event: " + self.type.encode() + b"\ndata: " + encoded + b"\n\n"


class FrameMaker:
    """Build the frames of one session by family (the envelope differs by family)."""

    def __init__(self, session_id: str, randomness: Randomness) -> None:
        self._session_id = session_id
        self._randomness = randomness

    def _frame(self, type: str, fields: JSON) -> Frame:  # noqa: A002 - the wire calls it so
        event_id = self._randomness.event_id()
        return Frame({"type": type, "event_id": event_id, **fields}, session_id=self._session_id)

    def session(self, kind: str, snapshot: JSON) -> Frame:
        """Build `agent.session.<kind>` with a full snapshot and no session id beside it."""
        return self._frame(f"agent.session.{kind}", {"session": snapshot})

    def turn(self, kind: str, turn: JSON) -> Frame:
        """Build `agent.session.turn.<kind>`; only the three terminal kinds carry usage."""
        fields: JSON = {"session_id": self._session_id, "turn_id": turn["id"], "turn": turn}
        if kind in ("completed", "failed", "cancelled"):
            fields["usage"] = turn["usage"]
        return self._frame(f"agent.session.turn.{kind}", fields)

    def item(self, kind: str, body: JSON, output_index: int | None) -> Frame:
        """Build `item.added` or `item.done`; input items have no output index."""
        fields = {
            "session_id": self._session_id,
            "turn_id": body["turn_id"],
            "output_index": output_index,
            "item": body,
        }
        return self._frame(f"agent.session.turn.item.{kind}", fields)

    def part(self, kind: str, body: JSON, output_index: int, fields: JSON) -> Frame:
        """Build a frame about a part of an item: text, content part, reasoning summary."""
        common = {
            "session_id": self._session_id,
            "turn_id": body["turn_id"],
            "item_id": body["id"],
            "output_index": output_index,
        }
        return self._frame(f"agent.session.turn.{kind}", {**common, **fields})

    def error(self, *, kind: str, code: str | None, message: str) -> Frame:
        """Build the `error` event, an ordinary value on the stream that others follow."""
        error = {"type": kind, "code": code, "message": message, "param": None}
        return self._frame("error", {"session_id": self._session_id, "error": error})

    def unknown(self, kind: str, snapshot: JSON) -> Frame:
        """Build an event of a type no client knows."""
        return self._frame(kind, {"session": snapshot})
