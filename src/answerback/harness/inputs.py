"""The input matrix: which events of a POST are taken, and what each does to the session.

A batch is all or nothing: every event is checked against the session as the ones before it would leave it, and only
then is any applied. (Whether the service is atomic is unverified; two other implementations are.)
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from answerback.harness import calls
from answerback.harness.bodies import Reader
from answerback.harness.errors import WireError, conflict, invalid, unsupported
from answerback.harness.frames import Frame
from answerback.harness.records import JSON, TERMINAL, Call
from answerback.harness.requests import read_content, read_messages
from answerback.harness.state import SessionState

MAX_EVENTS = 64
PREFIX = "agent.session.input."


class Message(msgspec.Struct, frozen=True):
    """User messages."""

    messages: list[JSON]


class Cancel(msgspec.Struct, frozen=True):
    """A request to cancel the active turn."""


class ToolResult(msgspec.Struct, frozen=True):
    """The result of one function call."""

    turn_id: str
    call_id: str
    result: JSON
    """`success`, `output` and `error`, all there: two results are the same when these are equal."""


Input = Message | Cancel | ToolResult


class Applied(msgspec.Struct, frozen=True):
    """What applying a batch came to."""

    frames: list[Frame]
    effects: list[bool]
    """Per event, whether it changed anything."""
    messages: int
    """How many events wait for admission."""
    cancelled: bool
    answered: bool


def read_inputs(body: JSON) -> list[Input]:
    """Read the events of a POST.

    Raises:
        WireError: 400 for anything that is not a list of known events; an empty list is fine and does nothing.
    """
    root = Reader(body)
    root.only("events")
    events = root.array("events")
    if events is None:
        raise root.missing("events")
    if len(events) > MAX_EVENTS:
        raise root.wrong("events", f"at most {MAX_EVENTS} events")
    return [_read(event) for event in root.children("events")]


def _read(event: Reader) -> Input:
    kind = event.required_text("type")
    match kind.removeprefix(PREFIX) if kind.startswith(PREFIX) else kind:
        case "message":
            event.only("type", "input")
            return Message(read_messages(event, "input"))
        case "cancel":
            event.only("type")
            return Cancel()
        case "tool_result":
            return _read_result(event)
        case "mcp_approval_request_result" | "computer_use_approval_request_result" as approval:
            raise unsupported(f"{PREFIX}{approval}", param=event.at("type"))
        case _:
            raise event.wrong("type", "an input event of the API")


def _read_result(event: Reader) -> ToolResult:
    event.only("type", "turn_id", "call_id", "success", "output", "error")
    turn_id, call_id = event.required_text("turn_id"), event.required_text("call_id")
    if event.value.get("success") is None:
        raise event.missing("success")
    success = event.flag("success", default=False)
    output, error = event.value.get("output"), event.text("error")
    if success and error is not None:
        raise event.wrong("error", "null where success is true")
    if isinstance(output, list):
        output = read_content(event, "output") if output else []
    elif output is not None and not isinstance(output, str):
        raise event.wrong("output", "a string, an array of parts, or null (serialize JSON values to a string)")
    return ToolResult(turn_id, call_id, {"success": success, "output": output, "error": error})


class Check:
    """The checks of one batch, with what its earlier events would have done."""

    def __init__(self, session: SessionState) -> None:
        self._session = session
        self._answers: dict[tuple[str, str], JSON] = {}
        self._cancelled = False

    def __repr__(self) -> str:
        return f"<Check {len(self._answers)} answered, cancelled={self._cancelled}>"

    def event(self, event: Input) -> WireError | None:
        """Return the refusal of an event, or None when it is fine."""
        record = self._session.record
        if record.failed:
            return conflict(f"the session has failed: {record.error}")
        if record.initial_pending:
            return conflict("session initial input is still pending")
        if isinstance(event, ToolResult):
            return self._result(event)
        if isinstance(event, Cancel) and self._session.active is not None:
            self._cancelled = not completion_wins(self._session)
        return None

    def _result(self, event: ToolResult) -> WireError | None:
        call = self._session.calls.get((event.turn_id, event.call_id))
        if call is None:
            elsewhere = any(known.call_id == event.call_id for known in self._session.calls.values())
            if elsewhere:
                return invalid(f"function call {event.call_id} belongs to a different managed agent turn")
            return unknown_call(event.call_id)
        if call.state in ("announced", "refused"):
            return unknown_call(event.call_id)
        given = self._answers.get((event.turn_id, event.call_id), call.result)
        if given is not None:
            same = given == event.result
            return None if same else conflict(f"function call {event.call_id} already has a different result")
        over = self._cancelled and call.turn_id == self._session.record.active_turn
        if call.state == "abandoned" or over:
            return conflict(f"the turn of function call {event.call_id} has ended")
        self._answers[event.turn_id, event.call_id] = event.result
        return None


def unknown_call(call_id: str) -> WireError:
    """Build the refusal of a result for a call that is not pending; clients match this text exactly."""
    return invalid(f"Unknown pending tool call: {call_id}")


def completion_wins(session: SessionState) -> bool:
    """Tell whether a cancel now would lose against output on its way (a knob)."""
    return session.knobs.cancel == "completion_wins" and session.status != "requires_action"


def apply(session: SessionState, events: Sequence[Input]) -> Applied:
    """Apply events that were all checked."""
    frames: list[Frame] = []
    effects: list[bool] = []
    waiting = 0
    cancelled = answered = False
    before = session.status
    for event in events:
        match event:
            case Message(messages):
                session.accept(messages)
                waiting += 1
                effects.append(True)
            case Cancel():
                turn = session.active
                takes = turn is not None and not completion_wins(session)
                effects.append(takes)
                if turn is not None and takes:
                    frames += session.cancel(turn)
                    cancelled = True
            case ToolResult():
                call = session.calls[event.turn_id, event.call_id]
                fresh = call.state == "pending"
                frames += calls.answer(session, call, event.result) if fresh else calls.repeat(session, call)
                answered = answered or (fresh and _in_active_turn(session, call))
                effects.append(fresh)
    if answered and not cancelled:
        frames += calls.settle(session, before)
    return Applied(frames, effects, waiting, cancelled, answered)


def _in_active_turn(session: SessionState, call: Call) -> bool:
    turn = session.turn(call.turn_id)
    return turn is not None and turn.status not in TERMINAL
