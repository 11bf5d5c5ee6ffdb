"""Resources default what is missing and pass over what is new."""

from __future__ import annotations

import msgspec
import pytest

from answerback.wire.records import ContentPart, Item, Page, RequiredAction, Session, SessionSnapshot, Turn


def test_a_session_is_read_from_next_to_nothing() -> None:
    session = msgspec.json.decode(b'{"id":"s"}', type=Session)
    assert (session.id, session.status, session.required_actions, session.agent) == ("s", "", [], None)


def test_other_kinds_of_actions_are_read_beside_function_calls() -> None:
    session = msgspec.json.decode(
        b'{"required_actions":[{"type":"mcp_approval_request","request_id":"r"},{"type":"tomorrow","x":{}},'
        b'{"type":"function_call","call_id":"c"}]}',
        type=Session,
    )
    assert [action.type for action in session.required_actions] == ["mcp_approval_request", "tomorrow", "function_call"]
    assert session.required_actions[0].request_id == "r"


def test_the_snapshot_of_a_session_is_what_frames_carry() -> None:
    actions = [RequiredAction(type="function_call", call_id="c")]
    session = Session(id="s", status="requires_action", error="no", required_actions=actions, metadata={"a": "b"})
    assert session.snapshot == SessionSnapshot("s", "requires_action", "no", actions)


def test_a_function_says_whether_it_is_async() -> None:
    session = msgspec.json.decode(
        b'{"agent":{"tools":[{"type":"function","name":"a","async":true},{"type":"function","name":"b"},'
        b'{"type":"function","name":"c","async":null},{"type":"web_search"}]}}',
        type=Session,
    )
    assert session.agent is not None
    assert [tool.is_async for tool in session.agent.tools] == [True, None, None, None]


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ("completed", True),
        ("failed", True),
        ("cancelled", True),
        ("in_progress", False),
        ("queued", False),
        ("", False),
    ],
)
def test_a_turn_is_over_when_it_completed_failed_or_was_cancelled(status: str, over: bool) -> None:
    assert Turn(status=status).over is over


def test_the_text_of_an_item_joins_the_parts_that_have_one() -> None:
    parts = [ContentPart("output_text", "a"), ContentPart("image", None), ContentPart("output_text", "b")]
    assert Item(type="message", content=parts).text == "ab"
    assert Item(type="message").text == ""


def test_a_page_without_a_cursor_has_none() -> None:
    page = msgspec.json.decode(b'{"data":[{"id":null,"type":"message"}],"has_more":true}', type=Page[Item])
    assert (page.data[0].id, page.last_id, page.has_more) == (None, None, True)
