"""The items of a turn tell what became of a result that nobody waits for any more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from answerback.actors.settle import settled_as
from answerback.model import CallRecord, CallState
from answerback.wire import inputs
from answerback.wire.records import Item
from unit.actors.rows import row

PARTS = [{"type": "input_text", "text": "a"}]


def record(output: Any = "ok", *, error: str | None = None, **changes: Any) -> CallRecord:
    element = inputs.tool_result(turn_id="turn_1", call_id="call_1", success=error is None, output=output, error=error)
    return row(CallState.SUBMITTED, outcome=element, **changes)


def shown(output: bytes = b'"ok"', *, error: Any = None, call_id: str = "call_1", kind: str = "") -> Item:
    return Item(type=kind or "function_call_output", call_id=call_id, output=msgspec.Raw(output), error=error)


@pytest.mark.parametrize(
    ("mine", "item", "state"),
    [
        (record("ok"), shown(b'"ok"'), CallState.ACKED),
        (record("\u00e9"), shown(b'"\\u00e9"'), CallState.ACKED),
        (record(PARTS), shown(b'[ {"text":"a", "type":"input_text"} ]'), CallState.ACKED),
        (record(""), shown(b'""'), CallState.ACKED),
        (record(None), shown(b"null"), CallState.ACKED),
        (record("ok"), shown(b'"other"'), CallState.SUPERSEDED),
        (record("ok"), shown(b"null"), CallState.SUPERSEDED),
        (record("ok"), shown(b'"ok"', error="failed"), CallState.SUPERSEDED),
        (record("1"), shown(b"1"), CallState.SUPERSEDED),
        (record(error="no"), shown(b"null", error="no"), CallState.ACKED),
        (record(error="no"), shown(b'"ignored"', error="no"), CallState.ACKED),
        (record(error="no"), shown(b"null", error="yes"), CallState.SUPERSEDED),
        (record(error="no"), shown(b'"ok"'), CallState.SUPERSEDED),
    ],
)
def test_an_output_is_compared_by_its_value(mine: CallRecord, item: Item, state: CallState) -> None:
    assert settled_as(mine, [item])[0] is state


@pytest.mark.parametrize(
    "items",
    [
        [],
        [shown(call_id="call_2")],
        [shown(kind="function_call")],
        [shown(kind="message")],
    ],
)
def test_no_output_of_this_call_means_that_its_turn_ended_first(items: list[Item]) -> None:
    state, reason = settled_as(record(), items)
    assert state is CallState.OBSOLETE
    assert "turn ended" in reason


def test_one_output_of_several_is_enough() -> None:
    assert settled_as(record(), [shown(b'"other"'), shown(b'"ok"'), shown(b'"ok"')])[0] is CallState.ACKED


def test_what_was_sent_is_the_substitute_where_there_is_one() -> None:
    refused = inputs.tool_result(turn_id="turn_1", call_id="call_1", success=False, output=None, error="too large")
    mine = record("ok", substitute=refused)
    assert settled_as(mine, [shown(b"null", error="too large")])[0] is CallState.ACKED
    assert settled_as(mine, [shown(b'"ok"')])[0] is CallState.SUPERSEDED
