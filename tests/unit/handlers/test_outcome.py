"""Results and errors as the model gets them."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.errors import OutputError, RetryLater, ToolError
from answerback.handlers import outcome
from answerback.handlers.outcome import encode
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool
from answerback.model import Effects, Outcome


@dataclasses.dataclass
class Who:
    name: str


class Row(pydantic.BaseModel):
    n: int
    at: dt.date


class Aliased(pydantic.BaseModel):
    inner_name: int = pydantic.Field(serialization_alias="innerName")


class Packed(msgspec.Struct):
    n: int
    extra: Any = None


class Kind(enum.Enum):
    RED = "red"
    ONE = 1


class Text(enum.StrEnum):
    GREEN = "green"


class Wide(msgspec.Struct, rename="camel"):
    one_two: int


UTC = dt.UTC


def text(value: object) -> str:
    encoded = encode(value)
    assert encoded.kind == "ok"
    assert isinstance(encoded.output, str)
    return encoded.output


def refusal(value: object) -> str:
    with pytest.raises(OutputError) as caught:
        encode(value)
    return caught.value.text


def tool(effects: Effects = "once", name: str = "charge") -> Tool[..., Any]:
    def handler(n: int) -> None:
        """Handle."""

    return Handlers().tool(handler, name=name, effects=effects)


def test_everyday_values_have_exactly_one_text() -> None:
    value = {
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": decimal.Decimal("19.90"),
        "id": uuid.UUID(int=5),
        "who": Who("Kim"),
        "row": Row(n=1, at=dt.date(2026, 1, 2)),
        "kind": Kind.RED,
        "pair": (1, 2),
        7: "int key",
        "big": 2**70,
    }
    assert text(value) == (
        '{"at":"2026-01-02T03:04:05Z","price":"19.90","id":"00000000-0000-0000-0000-000000000005",'
        '"who":{"name":"Kim"},"row":{"n":1,"at":"2026-01-02"},"kind":"red","pair":[1,2],"7":"int key",'
        '"big":1180591620717411303424}'
    )


VALUES: list[tuple[object, str]] = [
    ("as it is", "as it is"),
    ("", ""),
    ('{"not":"touched"}', '{"not":"touched"}'),
    (Text.GREEN, "green"),
    (Kind.RED, "red"),
    (Kind.ONE, "1"),
    (True, "true"),
    (7, "7"),
    (1.5, "1.5"),
    ({}, "{}"),
    ([], "[]"),
    ({"가": "나🙂"}, '{"가":"나🙂"}'),
    ({3, 1, 2}, "[1,2,3]"),
    (frozenset({"b", "a"}), '["a","b"]'),
    (collections.deque([1]), "[1]"),
    (range(3), "[0,1,2]"),
    (collections.OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
    (Packed(2**70, {"x": Who("Kim")}), '{"n":1180591620717411303424,"extra":{"x":{"name":"Kim"}}}'),
    (Wide(1), '{"oneTwo":1}'),
    (Aliased(inner_name=1), '{"innerName":1}'),
    (dt.datetime(2026, 1, 2), '"2026-01-02T00:00:00"'),
    (dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=9))), '"2026-01-02T00:00:00+09:00"'),
    (dt.timedelta(hours=1), '"PT3600S"'),
    ({None: 1, True: 2, 2.5: 3, Kind.RED: 4}, '{"null":1,"true":2,"2.5":3,"red":4}'),
    ({"type": "report", "text": "x"}, '{"type":"report","text":"x"}'),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_values_become_plain_text_or_compact_json(value: object, expected: str) -> None:
    assert text(value) == expected


def test_a_set_has_the_same_text_every_time() -> None:
    names = [f"name_{number:02}" for number in range(40)]
    assert text(set(names)) == json.dumps(names, separators=(",", ":"))


def test_none_is_a_result_without_output() -> None:
    assert encode(None) == Outcome("ok", output=None)


class Secret:
    def __repr__(self) -> str:
        return "hunter2"


loop: list[Any] = []
loop.append(loop)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"ab", "bytes"),
        ({"a": bytearray(b"ab")}, "bytes"),
        (Packed(1, b"ab"), "bytes"),
        (math.nan, "not finite"),
        ([math.inf], "not finite"),
        (decimal.Decimal("NaN"), "not finite"),
        ("\ud800", "half a character"),
        ({"\ud800": 1}, "half a character"),
        (Secret(), "type Secret"),
        ([object()], "type object"),
        ((number for number in (1, 2)), "type generator"),
        (Who, "type type"),
        (loop, "refers to itself"),
        ([10**5000], "too many digits"),
        ({1: "a", "1": "b"}, "two keys"),
        ({(1, 2): 3}, "key of type tuple"),
    ],
)
def test_a_value_without_an_exact_form_is_refused_and_not_changed(value: object, words: str) -> None:
    told = refusal(value)
    assert words in told
    assert "hunter2" not in told


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
        max_leaves=12,
    ).filter(lambda value: not isinstance(value, str) and value is not None)
)
def test_json_values_come_back_as_they_were_or_are_refused(value: object) -> None:
    try:
        written = text(value)
    except OutputError:
        with pytest.raises(ValueError):
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    else:
        assert json.loads(written) == value


PARTS = [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": "data:image/png;base64,eA=="}]


def test_content_parts_go_as_parts() -> None:
    assert encode(PARTS) == Outcome("ok", output=tuple(PARTS))
    assert encode(tuple(PARTS)).output == tuple(PARTS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (PARTS[0], "stands alone"),
        ([*PARTS, {"a": 1}], "element 2 is not a content part"),
        ([*PARTS, "text"], "element 2 is not a content part"),
        ([{"type": "input_image", "image_url": "u", "detail": "low"}], "'detail'"),
        ([{"type": "input_image", "file_id": "f"}], "'file_id'"),
        ([{"type": "input_image"}], "'image_url'"),
        ([{"type": "input_text", "text": 3}], "'text'"),
        ([{"type": "input_file", "file_data": "x"}], "'input_file'"),
        ([{"type": "input_text", "text": "\ud800"}], "half a character"),
    ],
)
def test_parts_that_are_almost_right_are_refused_by_name(value: object, words: str) -> None:
    assert words in refusal(value)


@pytest.mark.parametrize("value", ["x" * 11, ["x" * 11], [{"type": "input_text", "text": "x" * 11}]])
def test_a_result_over_the_limit_is_refused_whole_with_its_size(value: object) -> None:
    refused = encode(value, tool(), limit=10)
    assert (refused.kind, refused.success, refused.output) == ("failed", False, None)
    assert refused.error is not None
    assert "over the limit of 10" in refused.error
    assert "not stored" in refused.error
    assert "do not repeat it" in refused.error
    assert encode("x" * 10, tool(), limit=10).success


def test_the_default_limit_is_that_of_the_api() -> None:
    refused = encode("x" * 11_437_877, tool("read"))
    assert "11437877 characters" in (refused.error or "")
    assert encode("x" * 10_485_760).success


def error_of(found: Outcome) -> str:
    assert found.output is None
    assert not found.success
    assert found.error
    return found.error


def test_only_a_tool_errors_text_reaches_the_model() -> None:
    assert outcome.failed(ToolError("No invoice 42"), tool(), "r-1") == Outcome("failed", error="No invoice 42")
    told = error_of(outcome.failed(RuntimeError("postgres://svc:hunter2@db.internal"), tool(), "r-12ab"))
    assert "hunter2" not in told
    assert "db.internal" not in told
    assert "r-12ab" in told


def test_an_empty_tool_error_still_says_something() -> None:
    assert error_of(outcome.failed(ToolError(""), tool(), "r-1"))
    assert error_of(outcome.failed(ToolError("half \ud800"), tool(), "r-1")) == "half ?"


@pytest.mark.parametrize(
    ("effects", "advice"), [("read", "retry once"), ("idempotent", "retry once"), ("once", "check first")]
)
def test_advice_after_a_failure_depends_on_what_repeating_would_do(effects: Effects, advice: str) -> None:
    told = error_of(outcome.failed(ValueError(), tool(effects), "r-1"))
    assert advice in told
    assert ("retry" in told) is (effects != "once")


def test_a_result_that_cannot_be_sent_says_so_and_that_it_ran() -> None:
    told = error_of(outcome.failed(OutputError("it has bytes"), tool(), "r-1"))
    assert "ran to its end" in told
    assert "it has bytes" in told
    assert "do not repeat it" in told


def test_retry_later_to_the_end_means_nothing_happened() -> None:
    assert outcome.failed(RetryLater(), tool(), "r-1").kind == "not_started"


def test_a_timeout_names_tool_and_seconds_and_how_certain_it_is() -> None:
    started = outcome.timed_out(tool(), 2.0, started=True)
    assert started.kind == "unknown"
    assert error_of(started).startswith("Tool 'charge' timed out after 2 seconds.")
    assert "outcome is unknown" in error_of(started)
    assert "Do not repeat it blindly" in error_of(started)
    queued = outcome.timed_out(tool(), 0.2, started=False)
    assert queued.kind == "not_started"
    assert error_of(queued).startswith("Tool 'charge' timed out after 0.2 seconds.")
    assert "nothing happened" in error_of(queued)
    assert "no harm" in error_of(outcome.timed_out(tool("idempotent"), 2, started=True))


def test_an_interrupted_call_is_unknown_and_a_poisoned_one_is_not_started_again() -> None:
    assert outcome.interrupted(tool()).kind == "unknown"
    assert "Do not repeat it blindly" in error_of(outcome.interrupted(tool()))
    assert outcome.poisoned(tool(), 3).kind == "unknown"
    assert outcome.poisoned(tool("read"), 3).kind == "failed"
    assert "3 times" in error_of(outcome.poisoned(tool("read"), 3))


def test_an_unknown_function_is_answered_with_at_most_twenty_names() -> None:
    told = error_of(outcome.unknown_tool("nope", [f"tool_{number:02}" for number in range(30)]))
    assert told.startswith("Function 'nope' is not available now. Available: tool_00, ")
    assert "tool_19, ..." in told
    assert "tool_20" not in told
    assert error_of(outcome.unknown_tool("nope", [])) == "Function 'nope' is not available now."
    assert outcome.unknown_tool("nope", []).kind == outcome.disabled("nope").kind == "not_started"


def test_a_strange_name_from_the_model_is_cut_and_made_printable() -> None:
    told = error_of(outcome.unknown_tool("a\n\ud800" + "x" * 5000, []))
    assert len(told) < 150
    assert "\n" not in told
    told.encode()


def test_rejected_arguments_were_never_started() -> None:
    assert outcome.arguments_rejected("Arguments rejected: x: missing.") == Outcome(
        "not_started", error="Arguments rejected: x: missing."
    )


def test_every_ref_is_new() -> None:
    refs = {outcome.new_ref() for _ in range(50)}
    assert len(refs) == 50
    assert all(ref.startswith("r-") and 6 <= len(ref) <= 10 for ref in refs)
