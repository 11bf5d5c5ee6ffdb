"""One flat struct reads the events of today and of tomorrow; what it cannot read is still a hint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.wire.events import Event, decode_event


def decoded(payload: bytes) -> Event:
    event = decode_event(payload)
    assert event is not None
    return event


def test_a_requires_action_frame_lists_its_calls_with_their_arguments_as_text() -> None:
    event = decoded(
        b'{"type":"agent.session.requires_action","event_id":"e1","session":{"id":"s","status":"requires_action",'
        b'"required_actions":[{"type":"function_call","turn_id":"t","call_id":"c","name":"go","arguments":{"a": 1}}]}}'
    )
    assert event.session is not None
    (action,) = event.session.required_actions
    assert (action.turn_id, action.call_id, action.name) == ("t", "c", "go")
    assert bytes(action.arguments) == b'{"a": 1}'
    assert not event.malformed


def test_arguments_that_are_a_string_keep_their_quotes() -> None:
    event = decoded(rb'{"type":"x","session":{"required_actions":[{"type":"function_call","arguments":"{\"a\":1}"}]}}')
    assert event.session is not None
    assert bytes(event.session.required_actions[0].arguments) == rb'"{\"a\":1}"'


def test_an_unknown_type_keeps_its_name_and_what_is_known_of_it() -> None:
    event = decoded(b'{"type":"agent.session.dreaming","turn_id":"t","dream":{"deep":[1]}}')
    assert (event.type, event.turn_id, event.malformed) == ("agent.session.dreaming", "t", False)


def test_unknown_members_are_passed_over_at_every_depth() -> None:
    event = decoded(b'{"type":"x","new":1,"session":{"id":"s","new":[],"required_actions":[{"type":"y","new":{}}]}}')
    assert event.session is not None
    assert event.session.required_actions[0].type == "y"


def test_missing_members_default() -> None:
    event = decoded(b"{}")
    assert event == Event()


def test_nullable_members_may_be_null() -> None:
    event = decoded(b'{"type":"x","event_id":null,"turn_id":null,"session":null,"turn":null,"item":null,"delta":null}')
    assert event == Event(type="x")


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"x","session":[]}',
        b'{"type":"x","session":{"required_actions":{}}}',
        b'{"type":"x","session":{"required_actions":null}}',
        b'{"type":"x","session":{"status":7}}',
        b'{"type":"x","output_index":"first"}',
        b'{"type":"x","item":"gone"}',
        b'{"type":"x","delta":{"text":"a"}}',
    ],
)
def test_a_known_member_of_another_shape_leaves_the_type_and_is_marked(payload: bytes) -> None:
    assert decoded(payload) == Event(type="x", malformed=True)


@pytest.mark.parametrize("kind", [b"5", b"null", b"[]", b"{}"])
def test_a_type_of_another_shape_is_still_a_hint(kind: bytes) -> None:
    assert decoded(b'{"type":' + kind + b"}") == Event(type="", malformed=True)


@pytest.mark.parametrize("payload", [b"[DONE]", b"null", b"1", b'"text"', b"[]", b'[{"type":"x"}]', b"true"])
def test_what_is_no_object_is_no_event(payload: bytes) -> None:
    assert decode_event(payload) is None


@pytest.mark.parametrize(
    "payload", [b'{"type":"x"', b'{"type":"x"} y', b"{", b'{"type":"x","text":"\xff"}', b"\xff\xfe", b""]
)
def test_what_is_no_json_is_no_event(payload: bytes) -> None:
    assert decode_event(payload) is None


def test_half_a_character_does_not_cost_the_frame() -> None:
    event = decoded(
        b'{"type":"agent.session.requires_action","note":"\\udc00","session":{"id":"s","required_actions":'
        b'[{"type":"function_call","turn_id":"t","call_id":"c","name":"go","arguments":{"a":"\\ud83d"}}]}}'
    )
    assert event.session is not None
    (action,) = event.session.required_actions
    assert json.loads(bytes(action.arguments)) == {"a": "\ud83d"}
    assert b"\\ud83d" in bytes(action.arguments)


def test_half_a_character_and_a_wrong_shape_leave_the_type() -> None:
    assert decoded(b'{"type":"x","delta":"\\ud83d","session":[]}') == Event(type="x", malformed=True)


def test_a_whole_pair_is_one_character() -> None:
    assert decoded(rb'{"type":"x","delta":"\ud83d\ude00"}').delta == "\U0001f600"


def test_a_number_that_is_none_does_not_cost_the_frame() -> None:
    assert decoded(b'{"type":"x","usage":NaN}') == Event(type="x")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("agent.session.turn.item.output_text.delta", True),
        ("agent.session.turn.item.delta", True),
        ("agent.session.turn.item.output_text.done", False),
        ("delta", False),
        ("", False),
    ],
)
def test_only_a_delta_is_a_delta(kind: str, expected: bool) -> None:
    assert Event(type=kind).is_delta is expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = [
    "type",
    "event_id",
    "session",
    "turn",
    "item",
    "delta",
    "output_index",
    "id",
    "required_actions",
    "arguments",
]


@given(st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), JSON_VALUES, max_size=6))
def test_every_object_is_an_event_whatever_it_holds(members: dict[str, object]) -> None:
    for ascii_only in (True, False):
        payload = json.dumps(members, ensure_ascii=ascii_only).encode("utf-8", "replace")
        event = decoded(payload)
        if isinstance(members.get("type"), str) and ascii_only:
            assert event.type == members["type"]


@given(st.binary(max_size=60))
def test_no_bytes_raise(payload: bytes) -> None:
    decode_event(payload)
