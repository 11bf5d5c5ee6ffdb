"""One session as the played server of `wire_player` knows it, and the scripts and faults a test gives it.

Pure state: no sockets. `PlayedSession` decides what a POST is answered (one answer for the whole batch, all or nothing,
the first refusal in order wins) and what its streams are told; `wire_player` carries both over HTTP.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
import msgspec

JSON: TypeAlias = dict[str, Any]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is not the normal one; each is used once, in order, then the server behaves again."""

    status: int = 503
    body: JSON | None = None
    headers: dict[str, str] = {}
    apply: bool = False
    """The server did it all the same, the client is told `status`."""
    close: bool = False
    """No answer at all: the connection is cut."""
    hold: anyio.Event | None = None
    """The answer (not its effect) waits for this."""


class Step(msgspec.Struct, frozen=True):
    """One thing a stream connection does."""


class Frame(Step, frozen=True):
    """Send one event; it gets an `event_id` unless it has one."""

    event: JSON


class Snapshot(Step, frozen=True):
    """Send the session as it is now, as the event of its status (or of the one named here)."""

    status: str | None = None


class Raw(Step, frozen=True):
    """Send these bytes as they are, in one piece or byte by byte."""

    data: bytes | Callable[[PlayedSession], bytes]
    bytewise: bool = False


class Require(Step, frozen=True):
    """Make actions required without saying so on the stream."""

    actions: Sequence[JSON]


class Forget(Step, frozen=True):
    """Drop required calls without saying so on the stream."""

    call_ids: Sequence[str]


class Pause(Step, frozen=True):
    """Send nothing for some seconds (of the backend's clock)."""

    seconds: float


class Until(Step, frozen=True):
    """Send nothing until the test sets this event."""

    event: anyio.Event


class UntilAnswered(Step, frozen=True):
    """Send nothing but comments (every `ping` seconds, if given) until none of these calls is required."""

    call_ids: Sequence[str]
    ping: float | None = None


class Hang(Step, frozen=True):
    """Keep the connection open and never send again."""


class Close(Step, frozen=True):
    """End the stream as a server that is done does."""


class Reset(Step, frozen=True):
    """Break the connection off, after half of `event` if one is given."""

    event: JSON | None = None


def call(call_id: str, name: str = "f", arguments: object = msgspec.UNSET, *, turn_id: str = "turn_1") -> JSON:
    """Return a function call as `required_actions` lists it; `arguments` goes on the wire as given."""
    none: JSON = {}
    shown = none if arguments is msgspec.UNSET else arguments
    return {"type": "function_call", "turn_id": turn_id, "call_id": call_id, "name": name, "arguments": shown}


def call_added(call_id: str, name: str = "f", arguments: object = msgspec.UNSET, *, turn_id: str = "turn_1") -> Frame:
    """Return the `item.added` frame that announces a function call (which alone asks for no result)."""
    item = call(call_id, name, arguments, turn_id=turn_id) | {"id": f"item_{call_id}", "status": "in_progress"}
    event = {"type": "agent.session.turn.item.added", "turn_id": turn_id, "output_index": 0, "item": item}
    return Frame(event | {"session_id": "sess_1"})


def turn(turn_id: str, status: str = "in_progress", *, session_id: str = "sess_1") -> JSON:
    """Return a root turn with every key the API declares."""
    over = status in {"completed", "failed", "cancelled"}
    return {
        "id": turn_id, "object": "agent.session.turn", "session_id": session_id, "agent_id": "agent_1",
        "subagent_id": None, "status": status, "created_at": 1, "started_at": 1, "completed_at": 2 if over else None,
        "error": None, "usage": None,
    }  # fmt: skip


def encode_frame(event: JSON) -> bytes:
    """Return an event as one SSE block."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


class Signal:
    """Wakes every waiter whenever anything changed; a waiter looks again and decides for itself."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def changed(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self._event.wait()


class PlayedSession:
    """A session with a script: what is pending, what each stream connection sends, which requests go wrong.

    Args:
        pending: the required actions it starts with (`call(...)`).
        streams: one script per stream connection, the last one repeats. After its last step a connection follows the
            session: it tells accepted outputs, and the end of a turn.
        faults: by call id, or "message", "cancel", "session", "items", "turns", "stream".
        tools: the names its agent declares; None declares whatever is pending.
        echo: whether accepted results are told on the streams as output items.
        settle: whether a turn completes by itself once nothing is required of it.
        on_message: called with the session and the turn id for every message; without it a turn completes at once.
    """

    def __init__(
        self,
        *,
        session_id: str = "sess_1",
        pending: Sequence[JSON] = (),
        streams: Sequence[Sequence[Step]] = ((),),
        faults: Mapping[str, Sequence[Fault]] | None = None,
        tools: Sequence[str] | None = None,
        echo: bool = True,
        settle: bool = True,
        on_message: Callable[[PlayedSession, str], None] | None = None,
    ) -> None:
        self.id = session_id
        self.streams = streams
        self.faults = {name: list(listed) for name, listed in (faults or {}).items()}
        self.tools = tools
        self.echo = echo
        self.settle = settle
        self.on_message = on_message
        self.status: str | None = None
        self.metadata: dict[str, str] = {}
        self.pending: list[JSON] = []
        self.items: list[JSON] = []
        self.turns: list[JSON] = []
        self.answered: dict[tuple[str, str], JSON] = {}
        self.opened = 0
        self.live = 0
        self.sent = 0
        self.signal = Signal()
        self.followers: list[Callable[[bytes], None]] = []
        self._ids = itertools.count(1)
        self._seen: set[tuple[str, str]] = set()
        self.require(*pending)

    def __repr__(self) -> str:
        return f"<PlayedSession {self.id} {self.current_status}, {len(self.pending)} pending, {self.live} streams>"

    @property
    def current_status(self) -> str:
        if self.status is not None:
            return self.status
        if self.pending:
            return "requires_action"
        return "in_progress" if self._open_turns() else "idle"

    def require(self, *actions: JSON) -> None:
        """Add required actions; one that was ever there is not added again."""
        for action in actions:
            identity = (str(action.get("turn_id")), str(action.get("call_id") or action.get("request_id")))
            if identity in self._seen:
                continue
            self._seen.add(identity)
            self.pending.append(action)
            if not any(known["id"] == action.get("turn_id") for known in self.turns) and "turn_id" in action:
                self.turns.append(turn(action["turn_id"], "waiting", session_id=self.id))
        self.signal.changed()

    def require_again(self, action: JSON) -> None:
        """List an action once more, as a server that lost its answer would."""
        self._seen.discard((str(action.get("turn_id")), str(action.get("call_id"))))
        self.answered.pop((str(action.get("turn_id")), str(action.get("call_id"))), None)
        self.require(action)

    def forget(self, *call_ids: str) -> None:
        """Drop required calls, as a turn that moved on would."""
        self.pending = [action for action in self.pending if action.get("call_id") not in call_ids]
        self.signal.changed()

    def finish(self, status: str = "completed", *, text: str | None = None) -> None:
        """End every open turn, with an assistant message if `text` is given, and tell the streams."""
        for open_turn in self._open_turns():
            if text is not None:
                self.items.append(self._message("assistant", text, open_turn["id"]))
            open_turn.update(status=status, completed_at=2)
            self.publish(self._turn_event(status, open_turn))
        self.pending = []
        self.publish(self.snapshot_event())

    def publish(self, event: JSON) -> None:
        """Send an event to every connection that follows the session."""
        block = self.frame(event)
        for follow in self.followers:
            follow(block)
        self.signal.changed()

    def frame(self, event: JSON) -> bytes:
        """Return an event as bytes, with an `event_id`."""
        return encode_frame({"event_id": f"ev_{next(self._ids)}"} | event)

    def snapshot_event(self, status: str | None = None) -> JSON:
        """Return the event that carries the whole session."""
        kind = status or self.current_status
        return {"type": f"agent.session.{kind}", "session": self.body(kind)}

    def body(self, status: str | None = None) -> JSON:
        """Return the session as a retrieve shows it."""
        names = self.tools if self.tools is not None else sorted({str(action.get("name")) for action in self.pending})
        empty: JSON = {"type": "object", "properties": {}}
        agent: JSON = {
            "id": "agent_1", "model": "scripted", "name": None, "instructions": None, "service_tier": "auto",
            "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
            "reasoning": {"effort": "medium", "summary": None},
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tools": [
                {"type": "function", "name": name, "description": "", "parameters": empty, "defer_loading": False}
                for name in names
            ],
        }  # fmt: skip
        return {
            "id": self.id, "object": "agent.session", "agent": agent, "created_at": 1, "last_active_at": 1,
            "environment": {"type": "none"}, "error": None, "metadata": self.metadata, "vault_ids": [],
            "required_actions": list(self.pending), "status": status or self.current_status, "usage": None,
        }  # fmt: skip

    def take_fault(self, *names: str) -> Fault | None:
        """Use up the next fault waiting under one of these names."""
        for name in names:
            if self.faults.get(name):
                return self.faults[name].pop(0)
        return None

    def judge(self, events: Sequence[JSON]) -> tuple[int, str]:
        """Return the status a batch deserves, and the reason of a refusal. Changes nothing."""
        for event in events:
            if not event["type"].endswith("tool_result"):
                continue
            identity = (event["turn_id"], event["call_id"])
            if identity in self.answered:
                if self.answered[identity] != event:
                    return 409, "A different result was accepted for this call."
            elif not any(identity == (action.get("turn_id"), action.get("call_id")) for action in self.pending):
                if any(known["id"] == identity[0] and known["status"] == "cancelled" for known in self.turns):
                    return 409, "The turn was cancelled."
                return 400, f"Unknown pending tool call: {event['call_id']}"
        return 202, ""

    def apply(self, events: Sequence[JSON]) -> None:
        """Take a batch that was judged acceptable (or that a fault applies all the same)."""
        for event in events:
            kind = event["type"].rsplit(".", 1)[-1]
            if kind == "tool_result":
                self._take_result(event)
            elif kind == "cancel":
                self.finish("cancelled")
            elif kind == "message":
                self._take_message(event)

    def _take_result(self, event: JSON) -> None:
        identity = (event["turn_id"], event["call_id"])
        self.answered[identity] = event
        self.pending = [a for a in self.pending if (a.get("turn_id"), a.get("call_id")) != identity]
        output = {
            "id": f"item_out_{event['call_id']}", "type": "function_call_output", "turn_id": event["turn_id"],
            "call_id": event["call_id"], "output": event.get("output"), "error": event.get("error"),
            "status": "completed" if event["success"] else "failed",
        }  # fmt: skip
        if all(item["id"] != output["id"] or item["turn_id"] != output["turn_id"] for item in self.items):
            self.items.append(output)
        if self.echo:
            added = {"type": "agent.session.turn.item.added", "session_id": self.id, "turn_id": event["turn_id"]}
            self.publish(added | {"item": output, "output_index": None})
        if self.settle and not self.pending:
            self.finish()
        self.signal.changed()

    def _take_message(self, event: JSON) -> None:
        text = "".join(part.get("text", "") for message in event["input"] for part in message["content"])
        open_turns = self._open_turns()
        if not open_turns:
            open_turns = [turn(f"turn_{len(self.turns) + 1}", session_id=self.id)]
            self.turns += open_turns
            self.publish(self._turn_event("created", open_turns[0]))
        self.items.append(self._message("user", text, open_turns[0]["id"]))
        if self.on_message is not None:
            self.on_message(self, open_turns[0]["id"])
        elif self.settle:
            self.finish(text="Done.")

    def _message(self, role: str, text: str, turn_id: str) -> JSON:
        kind = "input_text" if role == "user" else "output_text"
        return {
            "id": f"item_{len(self.items) + 1}", "type": "message", "turn_id": turn_id, "role": role,
            "content": [{"type": kind, "text": text}], "status": "completed",
            "phase": None if role == "user" else "final_answer",
        }  # fmt: skip

    def _turn_event(self, kind: str, body: JSON) -> JSON:
        usage: JSON = {} if kind in {"created", "in_progress"} else {"usage": None}
        common = {"type": f"agent.session.turn.{kind}", "session_id": self.id, "turn_id": body["id"], "turn": body}
        return common | usage

    def _open_turns(self) -> list[JSON]:
        return [known for known in self.turns if known["completed_at"] is None]
