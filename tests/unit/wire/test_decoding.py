"""A document with half characters is read; one that is no JSON is refused with one kind of error."""

from __future__ import annotations

import json

import msgspec
import pytest

from answerback.wire.decoding import decode_record
from answerback.wire.records import Item, Page, Session

DEEP = b'{"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""Valid, and deeper than any decoder here goes."""
HALF = (
    b'{"id":"s","status":"requires_action","metadata":{"k":"\\ud83d"},"required_actions":[{"type":"function_call",'
    b'"turn_id":"t","call_id":"c","name":"go","arguments":{"text":"\\ud83d","n":[1,2]}}]}'
)


def test_half_a_character_in_arguments_stays_as_it_was() -> None:
    session = decode_record(HALF, Session)
    (action,) = session.required_actions
    assert json.loads(bytes(action.arguments)) == {"text": "\ud83d", "n": [1, 2]}
    assert bytes(action.arguments).isascii()
    assert session.status == "requires_action"


def test_arguments_that_are_a_string_with_half_a_character_stay_a_string() -> None:
    item = decode_record(b'{"type":"function_call","arguments":"{\\"a\\":\\"\\ud83d\\"}","output":null}', Item)
    assert json.loads(bytes(item.arguments)) == '{"a":"\ud83d"}'
    assert bytes(item.output) == b"null"


def test_whole_documents_keep_the_bytes_of_what_is_kept_as_text() -> None:
    item = decode_record(b'{"type":"function_call","arguments":{ "b":1.50,  "a":"\xc3\xa9"}}', Item)
    assert bytes(item.arguments) == b'{ "b":1.50,  "a":"\xc3\xa9"}'


def test_generic_records_are_read_too() -> None:
    page = decode_record(b'{"data":[{"type":"message","content":[{"text":"\\udfff"}]}],"has_more":false}', Page[Item])
    assert page.data[0].text == "\udfff"


@pytest.mark.parametrize("content", [b'{"id":', b"", b"<html>", b'{"id":"\xff"}', DEEP])
def test_no_json_is_a_decode_error(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        decode_record(content, Session)
    assert not isinstance(caught.value, msgspec.ValidationError)


@pytest.mark.parametrize("content", [b"[]", b"null", b'{"id":7}', b'{"id":"\\ud83d","status":7}'])
def test_another_shape_is_a_validation_error(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_record(content, Session)
