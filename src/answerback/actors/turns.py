"""Which turn answers which input, and what a finished turn came to. The matching is pure.

The service returns no turn id for an input and its items carry no client id, so a turn is recognised by order: the
newest root turn is noted before an input is posted, and what is newer afterwards is its answer. A message that
arrives while a turn is open steers that turn instead, which is recognised by the user item it leaves there.
One writer per session is assumed and documented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from answerback.model import CallRecord, InputRecord
from answerback.wire.records import Item, Turn


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn came to, well or not.

    Attributes:
        session_id: the session.
        turn_id: the turn.
        status: completed, failed or cancelled. A failed turn does not fail its session.
        output_text: the text of the final answer, empty when there is none.
        items: the turn's items in order, as the server keeps them.
        calls: the journal's rows of this turn's function calls.
        usage: token counts, or None while the server does not know them (it fills them seconds later).
        error: `code` and `message` of a failed turn.
    """

    session_id: str
    turn_id: str
    status: str
    output_text: str
    items: list[Item]
    calls: list[CallRecord]
    usage: dict[str, Any] | None = None
    error: dict[str, str | None] | None = None

    @property
    def ok(self) -> bool:
        """Whether the turn completed."""
        return self.status == "completed"

    def __repr__(self) -> str:
        return f"<TurnResult {self.turn_id} {self.status}, {len(self.calls)} calls, {len(self.output_text)} characters>"


def result_of(session_id: str, turn: Turn, items: Sequence[Item], calls: Sequence[CallRecord]) -> TurnResult:
    """Put a turn, its items and its calls together."""
    return TurnResult(
        session_id=session_id,
        turn_id=turn.id,
        status=turn.status,
        output_text=output_text(items),
        items=list(items),
        calls=[call for call in calls if call.key.turn_id == turn.id],
        usage=turn.usage,
        error={"code": turn.error.code, "message": turn.error.message} if turn.error else None,
    )


def output_text(items: Sequence[Item]) -> str:
    """Return the text of the final answer: its `final_answer` messages, or the last assistant message without one."""
    spoken = [item for item in items if item.type == "message" and item.role == "assistant"]
    final = [item for item in spoken if item.phase == "final_answer"]
    return "".join(item.text for item in final or spoken[-1:])


class Match(msgspec.Struct, frozen=True):
    """What is known of an input: the turn it belongs to, and whether that turn is over."""

    turn_id: str
    over: bool


def newest_root(turns: Sequence[Turn]) -> Turn | None:
    """Return the newest root turn of a newest-first list."""
    return next((turn for turn in turns if turn.subagent_id is None), None)


def match_input(
    entry: InputRecord, turns: Sequence[Turn], user_texts: Mapping[str, Sequence[str]], claimed: Mapping[str, str]
) -> Match | None:
    """Find the turn of an accepted input, or None while the server does not show it yet.

    Args:
        entry: the input, with the baseline noted before it was posted.
        turns: root and other turns, newest first.
        user_texts: texts of the user items, oldest first, of the turns that the input may have steered: the baseline
            turn, when it was open, and newer turns that earlier inputs began. A steer leaves its text there.
        claimed: turn id → key of the earlier input it belongs to.
    """
    roots = [turn for turn in turns if turn.subagent_id is None]
    by_id = {turn.id: turn for turn in roots}
    if entry.turn_id is not None:
        turn = by_id.get(entry.turn_id)
        return Match(entry.turn_id, turn.over) if turn else None
    newer: list[Turn] = []
    for turn in roots:
        if turn.id == entry.baseline_turn:
            break
        newer.append(turn)
    text = text_of(entry.element)
    baseline = by_id.get(entry.baseline_turn or "")
    if entry.baseline_open and baseline is not None and text in user_texts.get(baseline.id, ()):
        return Match(baseline.id, baseline.over)
    for turn in reversed(newer):
        if claimed.get(turn.id, entry.key) == entry.key:
            return Match(turn.id, turn.over)
        # An earlier input began it, and this one may have steered it: then its text follows the one that began it.
        if text in user_texts.get(turn.id, ())[1:]:
            return Match(turn.id, turn.over)
    return None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: list[_Part] = []


class _Input(msgspec.Struct):
    input: list[_Message] = []


def text_of(element: bytes) -> str:
    """Return the text of an input element, as its user item will show it."""
    if not element:
        return ""
    try:
        decoded = msgspec.json.decode(element, type=_Input)
    except msgspec.MsgspecError:
        return ""
    return "".join(part.text or "" for message in decoded.input for part in message.content)
