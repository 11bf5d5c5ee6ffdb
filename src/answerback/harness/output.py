"""Messages and reasoning of the model, as items with their parts and deltas.

Each function returns the frames to publish; text may be sent in one go or, when a knob sets a delay, piece by piece.
"""

from __future__ import annotations

from answerback.harness.frames import Frame
from answerback.harness.records import JSON, Item, Turn
from answerback.harness.state import SessionState


def pieces(text: str, size: int) -> list[str]:
    """Cut a text into deltas of at most `size` characters; an empty text has none."""
    size = max(size, 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


class MessageOutput:
    """One assistant message on its way out: `open`, then each piece, then `close`."""

    def __init__(self, session: SessionState, turn: Turn, *, text: str, phase: str) -> None:
        self._session = session
        self._turn = turn
        self._text = text
        self._phase = phase
        self._item: Item | None = None

    def __repr__(self) -> str:
        return f"<MessageOutput {self._phase}, {len(self._text)} characters>"

    def open(self) -> list[Frame]:
        """Announce the message, without content, and its only part, without text."""
        body: JSON = {
            "type": "message",
            "role": "assistant",
            "phase": self._phase,
            "status": "in_progress",
            "content": [],
        }
        self._item = self._session.add_output(body, turn=self._turn)
        added = self._session.frames.item("added", self._item.body, self._item.output_index)
        return [added, self._part("content_part.added", {"part": {"type": "output_text", "text": ""}})]

    def piece(self, text: str) -> list[Frame]:
        """Send the next piece of the text."""
        return [self._part("output_text.delta", {"delta": text})]

    def close(self) -> list[Frame]:
        """Send the whole text, the whole part and the completed item."""
        assert self._item is not None, "open comes first"
        part = {"type": "output_text", "text": self._text}
        self._session.change_item(self._item, status="completed", content=[part])
        self._turn.output_chars += len(self._text)
        self._session.touch(self._turn)
        return [
            self._part("output_text.done", {"text": self._text}),
            self._part("content_part.done", {"part": part}),
            self._session.frames.item("done", self._item.body, self._item.output_index),
        ]

    def _part(self, kind: str, fields: JSON) -> Frame:
        item = self._item
        assert item is not None, "open comes first"
        assert item.output_index is not None, "output has an index"
        return self._session.frames.part(kind, item.body, item.output_index, {"content_index": 0, **fields})


def reasoning(session: SessionState, turn: Turn, text: str) -> list[Frame]:
    """Emit a reasoning item with one summary part."""
    item = session.add_output({"type": "reasoning", "summary": [], "status": "in_progress"}, turn=turn)
    index = item.output_index
    assert index is not None, "output has an index"
    part = {"type": "summary_text", "text": text}

    def about(kind: str, fields: JSON) -> Frame:
        return session.frames.part(kind, item.body, index, {"summary_index": 0, **fields})

    frames = [
        session.frames.item("added", item.body, index),
        about("reasoning_summary_part.added", {"part": {"type": "summary_text", "text": ""}}),
        *(about("reasoning_summary_text.delta", {"delta": piece}) for piece in pieces(text, session.knobs.delta_size)),
        about("reasoning_summary_text.done", {"text": text}),
        about("reasoning_summary_part.done", {"part": part, "status": None}),
    ]
    session.change_item(item, status="completed", summary=[part])
    turn.output_chars += len(text)
    session.touch(turn)
    return [*frames, session.frames.item("done", item.body, index)]


def drop_unfinished(session: SessionState, turn: Turn) -> list[Frame]:
    """Mark output of the current step that a restart cut off as incomplete; the step is run again from its start."""
    frames: list[Frame] = []
    for item in session.items:
        cut = item.turn_id == turn.id and item.step == turn.cursor and item.body.get("status") == "in_progress"
        if cut and item.body["type"] in ("message", "reasoning"):
            session.change_item(item, status="incomplete")
            frames.append(session.frames.item("done", item.body, item.output_index))
    return frames
