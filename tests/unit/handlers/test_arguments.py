"""Raw wire arguments: what is taken, what is refused, and that no text ever holds a value."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from answerback.errors import ArgumentsError, ToolDefinitionError
from answerback.handlers.arguments import SchemaBinder, canonical_hash, decode
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool

SECRET = "hunter2"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=5)


class Mode(enum.Enum):
    AIR = "air"
    SEA = "sea"


class Address(BaseModel):
    city: str
    floor: int = 0


def add(x: int, y: int) -> int:
    """Add."""
    return x + y


def server_time() -> str:
    """Tell the time."""
    return "12:00"


def everything(
    score: Annotated[int, Field(ge=0, le=100)],
    customer_id: Annotated[str, Field(min_length=2, pattern="^[a-z]+$")] = "ab",
    mode: Mode = Mode.AIR,
    unit: Literal["kg", "lb"] = "kg",
    to: Address | None = None,
    either: int | list[int] = 0,
    free: dict[str, int] = {},  # noqa: B006 - pydantic copies it
    anything: Any = None,
) -> str:
    """Take everything."""
    return f"{score}"


def tool_of(function: Callable[..., Any]) -> Tool[..., Any]:
    return Handlers().tool(function)


def refusal(function: Callable[..., Any], raw: bytes) -> str:
    with pytest.raises(ArgumentsError) as caught:
        tool_of(function).bind(raw)
    return caught.value.text


def told_by(tool: Tool[..., Any], raw: bytes, *, otherwise: str) -> str:
    """Return the rejection's text, or `otherwise` when the arguments are fine."""
    try:
        tool.bind(raw)
    except ArgumentsError as error:
        return error.text
    return otherwise


@pytest.mark.parametrize("raw", [b"", b'""', b'"  \\n"', b"null", b'"null"', b'"{}"', b"{}", b" {} "])
def test_nothing_blank_and_null_all_mean_no_arguments(raw: bytes) -> None:
    assert tool_of(server_time).bind(raw).values == {}
    assert refusal(add, raw) == "Arguments rejected: x: missing; y: missing."


@pytest.mark.parametrize(
    "raw", [b'{"x":3,"y":2}', b'"{\\"x\\":3,\\"y\\":2}"', b'" {\\"y\\":2,\\n \\"x\\":3} "', b'{"x":"3","y":2.0}']
)
def test_an_object_and_a_string_that_holds_one_are_the_same(raw: bytes) -> None:
    assert tool_of(add).bind(raw).values == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    "text",
    [
        '{"x":3,"y":2}{"x":3,"y":2}',
        '{"x":3,"y":2}\n// done',
        '{"x":3,"y":',
        '{"x":3,"y":2,}',
        "{'x':3,'y':2}",
        "[3,2]",
        '"{\\"x\\":3,\\"y\\":2}"',
        "add(3,2)",
        '```json\n{"x":3,"y":2}\n```',
        '{"x":3,"x":4,"y":2}',
        '{"x":NaN,"y":2}',
        '{"x":-Infinity,"y":2}',
        '{"x":1e999,"y":2}',
        "7",
        "true",
    ],
)
def test_text_that_is_not_exactly_one_object_is_refused_and_never_repaired(text: str) -> None:
    for raw in (text.encode(), json.dumps(text).encode()):
        if raw == b'"{\\"x\\":3,\\"y\\":2}"':
            continue  # one decode gives the object; the doubly encoded form is the one to refuse
        assert refusal(add, raw) == "Arguments rejected: they must be one valid JSON object."


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"\x00", b'{"x":' + b"9" * 5000 + b"}", b'"\\ud800"'])
def test_bytes_that_are_no_text_and_endless_numbers_are_refused(raw: bytes) -> None:
    assert "JSON object" in refusal(add, raw)


@pytest.mark.parametrize("depth", [250, 2_000, 100_000])
def test_deep_nesting_is_an_answer_and_no_crash(depth: int) -> None:
    raw = b'{"score":1,"anything":' + b"[" * depth + b"]" * depth + b"}"
    assert "JSON object" in told_by(tool_of(everything), raw, otherwise="a valid JSON object")
    assert len(canonical_hash(raw)) == 64


def test_half_a_character_in_a_value_is_refused() -> None:
    text = refusal(everything, b'{"score":1,"customer_id":"\\ud800"}')
    assert "whole characters" in text


def test_problems_name_the_path_and_the_rule() -> None:
    assert refusal(add, b'{"x":"three","y":2}') == "Arguments rejected: x: must be an integer."
    assert refusal(add, b'{"x":3}') == "Arguments rejected: y: missing."
    assert refusal(add, b'{"x":3,"y":2,"z":9}') == "Arguments rejected: z: not a known parameter."
    assert refusal(everything, b'{"score":101,"to":{"floor":"up"},"mode":"rail","unit":"oz"}') == (
        "Arguments rejected: score: must be <= 100; mode: must be 'air' or 'sea'; unit: must be 'kg' or 'lb'; "
        "to.city: missing; to.floor: must be an integer."
    )


def test_alternatives_of_a_union_are_told_together() -> None:
    assert refusal(everything, b'{"score":1,"either":"x"}') == (
        "Arguments rejected: either: must be an integer or must be an array."
    )


def test_at_most_five_problems_and_the_number_of_the_others() -> None:
    raw = json.dumps({f"extra_{number}": SECRET for number in range(9)}).encode()
    text = refusal(server_time, raw)
    assert text.count("not a known parameter") == 5
    assert text.endswith("; and 4 more.")


def test_endless_names_and_literals_stay_within_600_characters() -> None:
    def choose(one: str) -> None: ...

    choose.__annotations__["one"] = Literal[tuple(f"option_number_{number}" for number in range(200))]
    raw = json.dumps({"one": "x", **{"k" * 5000 + str(number): 1 for number in range(9)}}).encode()
    assert len(refusal(choose, raw)) <= 600


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.sampled_from([SECRET, [SECRET], {SECRET: SECRET}, {"city": [SECRET]}, -1, 2.5, None, [[SECRET]]])
            for name in ("score", "customer_id", "mode", "unit", "to", "either", "free")
        },
    )
)
def test_no_problem_text_holds_a_value(members: dict[str, Any]) -> None:
    tool = tool_of(everything)
    told = told_by(tool, json.dumps(members).encode(), otherwise="")
    assert SECRET not in told
    assert len(told) <= 600


def test_keys_of_free_form_objects_count_as_values() -> None:
    assert refusal(everything, json.dumps({"score": 1, "free": {SECRET: "x"}}).encode()) == (
        "Arguments rejected: free: must be an integer."
    )


class Picky(BaseModel):
    code: str

    @field_validator("code")
    @classmethod
    def check(cls, value: str) -> str:
        if value == "crash":
            raise RuntimeError(SECRET)
        if value == "exit":
            raise SystemExit(SECRET)
        raise ValueError(f"{SECRET} {value}")


@pytest.mark.parametrize("code", ["zebra", "crash", "exit"])
def test_what_an_authors_validator_says_stays_here(code: str) -> None:
    def take(one: Picky) -> str:
        """Take."""
        return one.code

    text = refusal(take, json.dumps({"one": {"code": code}}).encode())
    assert text.startswith("Arguments rejected: ")
    assert SECRET not in text
    assert code not in text


@given(json_objects)
def test_every_object_is_taken_by_a_tool_that_takes_any_object(members: dict[str, Any]) -> None:
    raw = json.dumps(members).encode()
    assert decode(raw)[0] == members
    assert decode(json.dumps(raw.decode()).encode())[0] == members


@given(json_objects)
def test_the_hash_is_the_same_for_both_forms_any_spacing_and_any_order(members: dict[str, Any]) -> None:
    turned = dict(reversed(members.items()))
    forms = {
        canonical_hash(json.dumps(members).encode()),
        canonical_hash(json.dumps(turned, indent=2).encode()),
        canonical_hash(json.dumps(json.dumps(members)).encode()),
        canonical_hash(json.dumps(members, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if not _has_surrogates(members)
        else canonical_hash(json.dumps(members).encode()),
    }
    assert len(forms) == 1


def _has_surrogates(members: dict[str, Any]) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in json.dumps(members, ensure_ascii=False))


@given(json_objects, json_objects)
def test_other_arguments_have_another_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_hash(json.dumps(one).encode()) == canonical_hash(json.dumps(other).encode())) is same


@given(st.binary(max_size=80))
def test_the_hash_is_there_for_any_bytes(raw: bytes) -> None:
    assert len(canonical_hash(raw)) == 64


def test_the_hash_keeps_apart_what_must_not_be_confused() -> None:
    same = [b"", b"null", b'""', b'"null"', b"{}", b'"{}"']
    assert len({canonical_hash(raw) for raw in same}) == 1
    different = [b"{}", b"[]", b'{"x":1,"x":2}', b'{"x":2}', b'{"x":"2"}', b"not json", b"\xff", b'{"x":2.5}']
    assert len({canonical_hash(raw) for raw in different}) == len(different)
    assert canonical_hash(b"{'x':3}") == canonical_hash(b"\"{'x':3}\"")


PROCESS_USER = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 0},
        "role": {"enum": ["admin", "user"]},
        "address": {"$ref": "#/$defs/Address"},
    },
    "$defs": {"Address": {"type": "object", "properties": {"zip": {"type": "string"}}, "required": ["zip"]}},
    "required": ["username", "age"],
    "additionalProperties": False,
}


def test_a_ready_schema_checks_the_raw_members_and_leaves_them_as_they_are() -> None:
    binder = SchemaBinder(PROCESS_USER, tool="process_user")
    members: dict[str, Any] = {"username": "kim", "age": 3, "address": {"zip": "1", "more": [1]}}
    assert binder.bind(members, "").values == members


def test_problems_with_a_ready_schema_name_path_and_rule_and_no_value() -> None:
    binder = SchemaBinder(PROCESS_USER, tool="process_user")
    with pytest.raises(ArgumentsError) as caught:
        binder.bind({"username": SECRET[0], "role": SECRET, "address": {SECRET: SECRET}, "other": SECRET}, "")
    assert SECRET not in caught.value.text
    for words in ("age: missing", "username: must have at least 2 characters", 'role: must be one of "admin", "user"'):
        assert words in caught.value.text
    with pytest.raises(ArgumentsError, match=r"address\.zip: missing; other: not a known parameter"):
        binder.bind({"username": "kim", "age": 1, "address": {}, "other": 1}, "")


@pytest.mark.parametrize("value", ["\ud800", 10**400])
def test_members_a_validator_cannot_read_are_an_answer_and_no_crash(value: object) -> None:
    binder = SchemaBinder(PROCESS_USER, tool="process_user")
    with pytest.raises(ArgumentsError):
        binder.bind({"username": value, "age": 1}, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.test/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"type": "array"},
        {},
    ],
)
def test_a_schema_that_is_wrong_or_lies_elsewhere_is_refused_at_registration(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError):
        SchemaBinder(schema, tool="bad")
