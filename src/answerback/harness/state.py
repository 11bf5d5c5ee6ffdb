"""The state machine of one session. Pure: no I/O, no waiting; every mutation returns the frames to publish.

A session has at most one root turn at a time. A turn is moved by the model's steps (`turns`) and by the client's
inputs (`inputs`); both call the methods here, in one thread, so each mutation is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from answerback.harness.clock import Clock
from answerback.harness.frames import Frame, FrameMaker
from answerback.harness.knobs import Knobs
from answerback.harness.randomness import Randomness
from answerback.harness.records import JSON, TERMINAL, Call, Item, KeyUse, Session, Turn
from answerback.harness.views import session_object, turn_object

Record = Session | Turn | Item | Call | KeyUse


class SessionState:
    """Own the records of one session and apply what happens to them."""

    def __init__(self, record: Session, *, clock: Clock, randomness: Randomness, knobs: Knobs) -> None:
        self.record = record
        self.turns: list[Turn] = []
        self.items: list[Item] = []
        self.calls: dict[tuple[str, str], Call] = {}
        self.keys: dict[str, KeyUse] = {}
        self.frames = FrameMaker(record.id, randomness)
        self._clock = clock
        self._randomness = randomness
        self._knobs = knobs
        self._turns: dict[str, Turn] = {}
        self._items: dict[str, Item] = {}
        self._touched: dict[int, Record] = {}
        self._touched[id(record)] = record

    def __repr__(self) -> str:
        return f"<SessionState {self.id} {self.status}, {len(self.turns)} turns, {len(self.required)} required>"

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id."""
        return self.record.id

    @property
    def knobs(self) -> Knobs:
        """The knobs of the harness."""
        return self._knobs

    @property
    def active(self) -> Turn | None:
        """The turn that is not over yet."""
        turn_id = self.record.active_turn
        return self._turns[turn_id] if turn_id is not None else None

    @property
    def required(self) -> list[Call]:
        """The calls a result is awaited for, in call order."""
        return [call for call in self.calls.values() if call.state == "pending"]

    @property
    def status(self) -> str:
        """idle, in_progress, requires_action or failed."""
        if self.record.failed:
            return "failed"
        active = self.record.active_turn
        if active is None:
            return "in_progress" if self.record.initial_pending else "idle"
        blocked = any(call.blocking and call.state == "pending" for call in self.calls.values())
        return "requires_action" if blocked else "in_progress"

    def turn(self, turn_id: str) -> Turn | None:
        """Find a turn."""
        return self._turns.get(turn_id)

    def item(self, item_id: str) -> Item:
        """Find an item that exists."""
        return self._items[item_id]

    def awaits(self, step: int) -> bool:
        """Tell whether a step of the running turn still waits for a result it cannot go on without."""
        return any(
            call.step == step and call.blocking and call.state in ("announced", "pending")
            for call in self.calls.values()
            if call.turn_id == self.record.active_turn
        )

    def snapshot(self, status: str | None = None) -> JSON:
        """Build the session object as it is now; `status` replaces its own (for frames about the past)."""
        return session_object(
            self.record,
            status=status or self.status,
            required=self.required,
            turns=self.turns,
            now=self._clock.now(),
            knobs=self._knobs,
        )

    def view(self, turn: Turn) -> JSON:
        """Build a turn object as it is now."""
        return turn_object(turn, now=self._clock.now(), knobs=self._knobs)

    # -- records ----------------------------------------------------------------------------------------------------

    def touch(self, record: Record) -> None:
        """Mark a record as changed, to be written with the next commit."""
        self._touched[id(record)] = record

    def take_touched(self) -> list[Record]:
        """Return the records changed since the last time."""
        touched = list(self._touched.values())
        self._touched.clear()
        return touched

    def restore(
        self, *, turns: Sequence[Turn], items: Sequence[Item], calls: Sequence[Call], keys: Sequence[KeyUse]
    ) -> None:
        """Take over records read from disk."""
        self.turns = sorted(turns, key=lambda turn: turn.number)
        self.items = sorted(items, key=lambda item: item.number)
        self._turns = {turn.id: turn for turn in self.turns}
        self._items = {item.id: item for item in self.items}
        order = {item.id: item.number for item in self.items}
        self.calls = {(c.turn_id, c.call_id): c for c in sorted(calls, key=lambda call: order[call.item_id])}
        self.keys = {use.key: use for use in keys}
        self._touched.clear()

    def add_item(self, body: JSON, *, turn: Turn, step: int, output_index: int | None) -> Item:
        """Record an item; `body` gets its id and its turn."""
        item_id = self._randomness.id("item")
        item = Item(
            id=item_id,
            session_id=self.id,
            turn_id=turn.id,
            number=len(self.items),
            step=step,
            output_index=output_index,
            body={"id": item_id, **body, "turn_id": turn.id},
        )
        self.items.append(item)
        self._items[item_id] = item
        self.touch(item)
        return item

    def add_output(self, body: JSON, *, turn: Turn) -> Item:
        """Record an item of the model's output under the next output index."""
        index = turn.next_index
        turn.next_index += 1
        self.touch(turn)
        return self.add_item(body, turn=turn, step=turn.cursor, output_index=index)

    def change_item(self, item: Item, **changes: Any) -> None:
        """Replace an item's body by one with changes; frames already built keep the old one."""
        item.body = {**item.body, **changes}
        self.touch(item)

    def second(self) -> int:
        """Return the time in whole unix seconds, and note the session as active."""
        now = int(self._clock.now())
        if now != self.record.last_active_at:
            self.record.last_active_at = now
            self.touch(self.record)
        return now

    # -- messages and turns -----------------------------------------------------------------------------------------

    def accept(self, messages: list[JSON]) -> None:
        """Take user messages that are to be admitted later; they survive a restart."""
        self.second()
        self.record.inbox.append(messages)
        self.touch(self.record)

    def admit(self) -> list[Frame]:
        """Let the oldest accepted messages take effect: they start a turn, or steer the one that runs."""
        if not self.record.inbox:
            return []
        messages = self.record.inbox.pop(0)
        self.record.initial_pending = False
        self.touch(self.record)
        active = self.active
        return self._begin(messages) if active is None else self._add_user_items(active, messages)

    def _begin(self, messages: list[JSON]) -> list[Frame]:
        now = self.second()
        turn = Turn(
            id=self._randomness.id("turn"),
            session_id=self.id,
            agent_id=self.record.agent["id"],
            number=len(self.turns) + 1,
            status="queued",
            created_at=now,
            prompt_cache_options=self.record.prompt_cache_options,
        )
        self.turns.append(turn)
        self._turns[turn.id] = turn
        self.record.active_turn = turn.id
        self.touch(turn)
        frames = [self.frames.turn("created", self.view(turn)), *self._add_user_items(turn, messages)]
        turn.status, turn.started_at = "in_progress", now
        return [
            *frames,
            self.frames.session("in_progress", self.snapshot()),
            self.frames.turn("in_progress", self.view(turn)),
        ]

    def _add_user_items(self, turn: Turn, messages: list[JSON]) -> list[Frame]:
        frames: list[Frame] = []
        for message in messages:
            body = {
                "type": "message",
                "role": "user",
                "phase": None,
                "status": "completed",
                "content": message["content"],
            }
            item = self.add_item(body, turn=turn, step=-1, output_index=None)
            text = "".join(part["text"] for part in message["content"] if part["type"] == "input_text")
            turn.input = text or turn.input
            turn.input_chars += len(text)
            frames.append(self.frames.item("added", item.body, None))
        self.touch(turn)
        return frames

    def advance(self, turn: Turn) -> None:
        """Note that the turn's current step is done."""
        turn.cursor += 1
        self.touch(turn)

    def complete(self, turn: Turn) -> list[Frame]:
        """End a turn well; calls of `async` functions stay open."""
        return self._end(turn, "completed")

    def fail(self, turn: Turn, *, code: str, message: str) -> list[Frame]:
        """End a turn as failed. The session itself is idle afterwards, not failed (observed)."""
        turn.error = {"code": code, "message": message}
        error = self.frames.error(kind="turn_error", code=code, message=message)
        return [error, *self._abandon(turn), *self._end(turn, "failed")]

    def cancel(self, turn: Turn) -> list[Frame]:
        """End a turn as cancelled: unfinished items become incomplete, its calls are abandoned."""
        interim: list[Frame] = []
        waiting = self.status == "requires_action"
        abandoned = self._abandon(turn)
        if waiting and self._knobs.cancel == "interim":
            interim.append(self.frames.session("in_progress", self.snapshot()))
        return [*abandoned, *interim, *self._end(turn, "cancelled")]

    def fail_session(self, message: str) -> list[Frame]:
        """End the session itself; nothing is accepted afterwards but its deletion."""
        turn = self.active
        frames: list[Frame] = []
        if turn is not None:
            turn.error = {"code": "internal_error", "message": message}
            frames = self._abandon(turn)
            frames += self._end(turn, "failed")[:1]
        self.record.failed, self.record.error = True, message
        self.record.inbox.clear()
        self.touch(self.record)
        error = self.frames.error(kind="session_error", code="internal_error", message=message)
        return [error, *frames, self.frames.session("failed", self.snapshot())]

    def _end(self, turn: Turn, status: str) -> list[Frame]:
        assert turn.status not in TERMINAL, "a turn ends once"
        turn.completed_at = self.second()
        turn.status = status  # type: ignore[assignment]  # one of the three literals, given by the callers above
        self.record.active_turn = None
        self.touch(turn)
        self.touch(self.record)
        return [self.frames.turn(status, self.view(turn)), self.frames.session("idle", self.snapshot())]

    def _abandon(self, turn: Turn) -> list[Frame]:
        frames: list[Frame] = []
        for call in self.calls.values():
            if call.turn_id == turn.id and call.state in ("announced", "pending"):
                call.state = "abandoned"
                self.touch(call)
        for item in self.items:
            if item.turn_id == turn.id and item.body.get("status") == "in_progress":
                self.change_item(item, status="incomplete")
                if item.body["type"] != "function_call":
                    frames.append(self.frames.item("done", item.body, item.output_index))
        return frames
