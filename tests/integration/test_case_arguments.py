"""Cases A05 and A06: arguments are one JSON object or nothing; what is anything else never reaches a handler."""

from __future__ import annotations

import json

from answerback import Handlers
from integration.rig import answering
from wire_player import PlayedSession, call

NOTHING: dict[str, int] = {}
ABSENT: dict[str, object] = {
    "empty": "",
    "blank": " \t\n",
    "null": None,
    "null text": "null",
    "object text": "{}",
    "object": NOTHING,
}


async def test_no_arguments_in_any_form_are_an_empty_object() -> None:
    handlers = Handlers()
    rung: list[int] = []

    @handlers.tool
    def ring() -> str:
        """Ring the bell."""
        rung.append(1)
        return "ding"

    session = PlayedSession(pending=[call(f"c_{name}", "ring", value) for name, value in ABSENT.items()])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in ABSENT))
    assert len(rung) == len(ABSENT)
    assert {result.output for result in accepted.values()} == {"ding"}


async def test_no_arguments_where_one_is_required_are_refused_by_its_name() -> None:
    handlers = Handlers()
    opened: list[str] = []

    @handlers.tool
    def open_gate(gate_id: str, wide: bool = False) -> str:
        """Open a gate."""
        opened.append(gate_id)
        return f"{gate_id} {wide}"

    pending = [call(f"c_{name}", "open_gate", value) for name, value in ABSENT.items()]
    session = PlayedSession(pending=[*pending, call("c_given", "open_gate", {"gate_id": "G2"})])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in ABSENT), "c_given")
    assert opened == ["G2"]
    assert accepted["c_given"].output == "G2 False"
    for name in ABSENT:
        assert accepted[f"c_{name}"].success is False
        assert "gate_id" in (accepted[f"c_{name}"].error or "")


GOOD = {"left": 31, "right": 11}
TEXT = json.dumps(GOOD)
NOT_ONE_OBJECT = {
    "twice": TEXT * 2,
    "with a remark": f"{TEXT} # that is all",
    "cut off": TEXT[:-4],
    "trailing comma": TEXT.replace("}", ",}"),
    "single quotes": TEXT.replace('"', "'"),
    "an array": "[31, 11]",
    "a number": "31",
    "true": "true",
    "encoded twice": json.dumps(TEXT),
    "a call": "subtract(31, 11)",
    "in a fence": f"```json\n{TEXT}\n```",
    "behind a mark": "\ufeff" + TEXT,
    "not a number": '{"left": NaN, "right": 11}',
}


async def test_text_that_is_not_exactly_one_object_is_refused_and_never_repaired() -> None:
    handlers, seen = subtracting()
    session = PlayedSession(pending=[call(f"c_{name}", "subtract", text) for name, text in NOT_ONE_OBJECT.items()])
    async with answering(session, handlers) as stage:
        refused = await stage.answered(*(f"c_{name}" for name in NOT_ONE_OBJECT))
    assert seen == []
    for name in NOT_ONE_OBJECT:
        error = refused[f"c_{name}"].error or ""
        assert refused[f"c_{name}"].success is False, name
        assert 0 < len(error) <= 600, name
        assert "JSON" in error or "left" in error, name
        assert "Traceback" not in error, name


WRONG_MEMBERS = {
    "left": {"left": "thirty-one", "right": 11},
    "right": {"left": 31},
    "middle": {"left": 31, "right": 11, "middle": 5},
}


async def test_a_wrong_member_is_named_without_its_value() -> None:
    handlers, seen = subtracting()
    session = PlayedSession(pending=[call(f"c_{name}", "subtract", value) for name, value in WRONG_MEMBERS.items()])
    async with answering(session, handlers) as stage:
        refused = await stage.answered(*(f"c_{name}" for name in WRONG_MEMBERS))
    assert seen == []
    for field in WRONG_MEMBERS:
        assert refused[f"c_{field}"].success is False
        assert field in (refused[f"c_{field}"].error or "")
        assert "thirty" not in (refused[f"c_{field}"].error or "")


async def test_an_object_is_taken_as_text_or_as_itself() -> None:
    handlers, seen = subtracting()
    forms = {"c_text": TEXT, "c_object": GOOD, "c_spaced": ' {"right":11,\n\t"left": 31 } \r\n'}
    session = PlayedSession(pending=[call(name, "subtract", form) for name, form in forms.items()])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*forms)
    assert seen == [(31, 11)] * 3
    assert {result.output for result in accepted.values()} == {"20"}


async def test_many_wrong_members_are_told_in_one_bounded_text() -> None:
    handlers, seen = subtracting()
    arguments = {f"member_{number}_{'x' * 80}": number for number in range(40)}
    async with answering(PlayedSession(pending=[call("c_bad", "subtract", arguments)]), handlers) as stage:
        error = (await stage.answered("c_bad"))["c_bad"].error or ""
    assert seen == []
    assert len(error) <= 600


def subtracting() -> tuple[Handlers, list[tuple[int, int]]]:
    """Return a tool of two numbers, and what it was called with."""
    handlers = Handlers()
    seen: list[tuple[int, int]] = []

    @handlers.tool
    def subtract(left: int, right: int) -> int:
        """Subtract."""
        seen.append((left, right))
        return left - right

    return handlers, seen
