"""What we send is the same bytes every time, under a key that depends on what is sent and on nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answerback.wire import inputs

IDS = st.text(st.characters(min_codepoint=0x20), min_size=1, max_size=12)
MEMBER = st.tuples(IDS, IDS, IDS, st.integers(0, 5))


def result(**changes: Any) -> bytes:
    values: dict[str, Any] = {"turn_id": "t", "call_id": "c", "success": True, "output": "ok", "error": None}
    return inputs.tool_result(**values | changes)


def test_a_success_has_its_output_and_no_error() -> None:
    assert result() == (
        b'{"type":"agent.session.input.tool_result","turn_id":"t","call_id":"c","success":true,"output":"ok"}'
    )


def test_a_failure_has_its_error_and_no_output() -> None:
    assert result(success=False, output="ignored", error="No such order.") == (
        b'{"type":"agent.session.input.tool_result","turn_id":"t","call_id":"c","success":false,'
        b'"error":"No such order."}'
    )


@pytest.mark.parametrize("error", [None, ""])
def test_a_failure_without_words_gets_some(error: str | None) -> None:
    assert json.loads(result(success=False, error=error))["error"] == "The function failed."


def test_a_success_may_be_empty_or_null() -> None:
    assert json.loads(result(output=""))["output"] == ""
    assert json.loads(result(output=None)) == {
        "type": "agent.session.input.tool_result",
        "turn_id": "t",
        "call_id": "c",
        "success": True,
        "output": None,
    }


def test_parts_keep_the_order_of_their_members() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"image_url": "data:,", "type": "input_image"}]
    assert result(output=parts).endswith(
        b'"output":[{"type":"input_text","text":"a"},{"image_url":"data:,","type":"input_image"}]}'
    )


def test_text_goes_out_as_utf_8_and_control_characters_are_escaped() -> None:
    assert result(output="\u00e9\U0001f600\n\x00").endswith('"output":"\u00e9\U0001f600\\n\\u0000"}'.encode())


@given(st.text(st.characters(exclude_categories=["Cs"])), IDS, IDS)
def test_the_same_result_is_the_same_bytes_and_reads_back(output: str, turn_id: str, call_id: str) -> None:
    first = result(output=output, turn_id=turn_id, call_id=call_id)
    assert first == result(output=output, turn_id=turn_id, call_id=call_id)
    assert json.loads(first)["output"] == output
    assert (json.loads(first)["turn_id"], json.loads(first)["call_id"]) == (turn_id, call_id)


def test_a_text_becomes_one_user_message() -> None:
    assert inputs.message("Hi") == (
        b'{"type":"agent.session.input.message","input":[{"role":"user","content":'
        b'[{"type":"input_text","text":"Hi"}]}]}'
    )


def test_ready_messages_travel_as_they_are() -> None:
    ready: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]},
        {"role": "user"},
    ]
    assert json.loads(inputs.message(ready)) == {"type": "agent.session.input.message", "input": ready}


def test_a_cancel_is_one_element() -> None:
    assert json.loads(inputs.CANCEL) == {"type": "agent.session.input.cancel"}


def test_a_body_holds_its_elements_byte_by_byte_in_order() -> None:
    elements = [b'{"b": 1,  "a":2}', result(), inputs.CANCEL]
    assert inputs.body(elements) == b'{"events":[' + b",".join(elements) + b"]}"
    assert len(json.loads(inputs.body(elements))["events"]) == 3


def test_a_body_of_nothing_is_an_empty_list() -> None:
    assert json.loads(inputs.body([])) == {"events": []}


# --- keys -----------------------------------------------------------------------------------------------------------


@given(st.lists(MEMBER, min_size=1, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_the_key_of_a_batch_does_not_depend_on_its_order(members: list[Any], random: Any) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)
    assert inputs.results_key(iter(shuffled)) == inputs.results_key(members)


@given(st.lists(MEMBER, min_size=1, max_size=4, unique=True), st.lists(MEMBER, min_size=1, max_size=4, unique=True))
def test_other_members_have_another_key(one: list[Any], other: list[Any]) -> None:
    assert (inputs.results_key(one) == inputs.results_key(other)) == (sorted(one) == sorted(other))


@pytest.mark.parametrize(
    "other",
    [
        ("S", "t", "c", 0),
        ("s", "T", "c", 0),
        ("s", "t", "C", 0),
        ("s", "t", "c", 1),
        ("st", "", "c", 0),
        ("s", "tc", "", 0),
    ],
)
def test_every_part_of_a_member_counts(other: tuple[str, str, str, int]) -> None:
    assert inputs.results_key([other]) != inputs.results_key([("s", "t", "c", 0)])


def test_a_batch_is_neither_its_part_nor_two_batches() -> None:
    a, b = ("s", "t", "a", 0), ("s", "t", "b", 0)
    keys = {inputs.results_key(members) for members in ([a], [b], [a, b])}
    assert len(keys) == 3


def test_a_later_process_makes_the_same_key() -> None:
    code = (
        "from answerback.wire import inputs;"
        "print(inputs.results_key([('s','t','b',1),('s','t','a',0)]), inputs.input_key('s','k'))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    here = inputs.results_key([("s", "t", "a", 0), ("s", "t", "b", 1)]), inputs.input_key("s", "k")
    assert runs == {f"{here[0]} {here[1]}\n"}


def test_keys_fit_what_the_service_takes() -> None:
    key = inputs.results_key([("s" * 500, "\U0001f600", "\ud83d", n) for n in range(64)])
    assert key.isascii()
    assert key.isprintable()
    assert 1 <= len(key) <= 256


def test_an_input_and_a_result_never_share_a_key() -> None:
    assert inputs.input_key("s", "k") != inputs.results_key([("s", "k", "", 0)])
    assert len({inputs.input_key("s", "k"), inputs.input_key("s", "j"), inputs.input_key("r", "k")}) == 3
