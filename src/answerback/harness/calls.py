"""Function calls of a session's turn: announced, registered as pending, answered, done.

Functions over `SessionState`, as pure as it is; they return the frames to publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from answerback.harness.frames import Frame
from answerback.harness.models.steps import Call as CallStep
from answerback.harness.randomness import Randomness
from answerback.harness.records import JSON, Call, Turn
from answerback.harness.state import SessionState


def announce(session: SessionState, turn: Turn, steps: Sequence[CallStep], *, randomness: Randomness) -> list[Frame]:
    """Emit the calls of one step as items. They are not registered yet: a result posted now is unknown."""
    frames: list[Frame] = []
    for step in steps:
        frames += announce_one(session, turn, step, randomness=randomness)
    return frames


def announce_one(session: SessionState, turn: Turn, step: CallStep, *, randomness: Randomness) -> list[Frame]:
    """Emit one call as an item; a function the session does not have is answered with an error at once."""
    tool = find_function(session, step.name)
    call_id = step.call_id or _call_id(session, turn, randomness)
    arguments = _arguments(session, step.arguments)
    body = {"type": "function_call", "call_id": call_id, "name": step.name, "arguments": arguments}
    item = session.add_output({**body, "status": "in_progress"}, turn=turn)
    call = Call(
        session_id=session.id,
        turn_id=turn.id,
        call_id=call_id,
        name=step.name,
        arguments=arguments,
        item_id=item.id,
        step=turn.cursor,
        blocking=tool is not None and not tool.get("async", False),
        state="announced" if tool is not None else "refused",
    )
    session.calls[turn.id, call_id] = call
    session.touch(call)
    frames = [session.frames.item("added", item.body, item.output_index)]
    if session.knobs.call_done == "at_call":
        session.change_item(item, status="completed")
        frames.append(session.frames.item("done", item.body, item.output_index))
    if tool is None:
        call.result = {"success": False, "output": None, "error": f"unsupported call: {step.name}"}
        frames.append(_output_frame(session, turn, call))
        frames += finish(session, [call])
    return frames


def find_function(session: SessionState, name: str) -> JSON | None:
    """Find a function the session's agent has now; an update may have replaced them meanwhile."""
    for tool in session.record.agent["tools"]:
        if tool["type"] == "function" and tool["name"] == name:
            found: JSON = tool
            return found
    return None


def register(session: SessionState, turn: Turn, calls: Sequence[Call]) -> list[Frame]:
    """Make announced calls pending, so that they are required and their results accepted."""
    registered = [call for call in calls if call.state == "announced"]
    for call in registered:
        call.state = "pending"
        session.touch(call)
    if not registered:
        return []
    if any(call.blocking for call in registered):
        turn.status = "waiting"
        session.touch(turn)
        return [session.frames.session("requires_action", session.snapshot())]
    # A call of an async function stops nothing: it shows in a snapshot that still reads in_progress.
    return [session.frames.session("in_progress", session.snapshot())]


def answer(session: SessionState, call: Call, result: JSON) -> list[Frame]:
    """Accept the first result of a pending call: its output item is announced at once (observed)."""
    turn = session.turn(call.turn_id)
    assert turn is not None, "a call belongs to a turn"
    call.state, call.result = "answered", result
    session.touch(call)
    session.second()
    item = session.item(call.item_id)
    session.change_item(item, status="completed")
    frames = [_output_frame(session, turn, call)]
    if not call.blocking:
        frames += finish(session, [call])
    return frames


def repeat(session: SessionState, call: Call) -> list[Frame]:
    """Announce the output item of an answered call again, as an identical result does (observed)."""
    if session.knobs.duplicate_result == "silent" or call.output_item_id is None:
        return []
    return [session.frames.item("added", session.item(call.output_item_id).body, None)]


def settle(session: SessionState, before: str) -> list[Frame]:
    """Say where the session stands after results were accepted; `before` is its status before them."""
    turn = session.active
    if turn is None or before == "failed":
        return []
    if session.status == "requires_action":
        return [session.frames.session("requires_action", session.snapshot())] if session.knobs.shrink else []
    turn.status = "in_progress"
    session.touch(turn)
    frames = [session.frames.session("in_progress", session.snapshot())]
    if session.knobs.resume == "session_and_turn" and before == "requires_action":
        frames.append(session.frames.turn("in_progress", session.view(turn)))
    return frames


def finish(session: SessionState, calls: Sequence[Call]) -> list[Frame]:
    """Emit `item.done` of calls whose results are in, unless the knob had it sent at the call."""
    if session.knobs.call_done == "at_call":
        return []
    frames: list[Frame] = []
    for call in calls:
        item = session.item(call.item_id)
        session.change_item(item, status="completed")
        frames.append(session.frames.item("done", item.body, item.output_index))
    return frames


def step_calls(session: SessionState, turn: Turn, step: int) -> list[Call]:
    """List the calls one step of a turn made, in call order."""
    return [call for call in session.calls.values() if call.turn_id == turn.id and call.step == step]


def _output_frame(session: SessionState, turn: Turn, call: Call) -> Frame:
    result = call.result
    assert result is not None, "an output item shows a result"
    body = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": result["output"],
        "error": result["error"],
        "status": "completed" if result["success"] else "failed",
    }
    item = session.add_item(body, turn=turn, step=-1, output_index=None)
    call.output_item_id = item.id
    session.touch(call)
    output = result["output"]
    turn.input_chars += len(output if isinstance(output, str) else msgspec.json.encode(output))
    session.touch(turn)
    return session.frames.item("added", item.body, None)


def _call_id(session: SessionState, turn: Turn, randomness: Randomness) -> str:
    call_id = randomness.id("call")
    if session.knobs.call_ids == "long":
        return call_id + "0123456789abcdef" * 16
    if session.knobs.call_ids == "unicode":
        return f"{call_id}-호출 №{len(session.calls) + 1}"
    assert (turn.id, call_id) not in session.calls, "generated ids are unique"
    return call_id


def _arguments(session: SessionState, arguments: JSON) -> Any:
    if session.knobs.arguments == "object":
        return arguments
    text = msgspec.json.encode(arguments).decode()
    return text if session.knobs.arguments == "string" else text[:-1] + ","
