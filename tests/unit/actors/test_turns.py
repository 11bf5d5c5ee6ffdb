"""Which turn answers which input, recognised by order and, for a steer, by the text it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from answerback.actors.turns import Match, TurnResult, match_input, newest_root, output_text, result_of, text_of
from answerback.model import CallState, InputRecord
from answerback.wire import inputs
from answerback.wire.records import ContentPart, Item, Turn, TurnError
from unit.actors.rows import SESSION, key, row


def entry(text: str = "Hi", **changes: Any) -> InputRecord:
    values: dict[str, Any] = {
        "session_id": SESSION,
        "key": "mine",
        "element": inputs.message(text),
        "state": "accepted",
    }
    return InputRecord(**values | changes)


def done(turn_id: str, subagent: str | None = None) -> Turn:
    return Turn(turn_id, "completed", subagent)


def going(turn_id: str, subagent: str | None = None) -> Turn:
    return Turn(turn_id, "in_progress", subagent)


def message(text: str, role: str = "assistant", phase: str | None = None) -> Item:
    return Item(type="message", role=role, phase=phase, content=[ContentPart("output_text", text)])


# --- an input to an idle session ------------------------------------------------------------------------------------


def test_the_first_turn_of_all_answers_the_first_input() -> None:
    assert match_input(entry(), [going("t1")], {}, {}) == Match("t1", False)
    assert match_input(entry(), [done("t1")], {}, {}) == Match("t1", True)


def test_without_a_turn_there_is_no_match() -> None:
    assert match_input(entry(), [], {}, {}) is None


def test_a_turn_newer_than_the_baseline_answers_the_input() -> None:
    assert match_input(entry(baseline_turn="t1"), [going("t2"), done("t1")], {}, {}) == Match("t2", False)


def test_the_baseline_and_what_is_older_never_answer_it() -> None:
    assert match_input(entry(baseline_turn="t2"), [done("t2"), done("t1")], {}, {}) is None


def test_of_several_newer_turns_the_oldest_is_the_answer() -> None:
    turns = [going("t3"), done("t2"), done("t1")]
    assert match_input(entry(baseline_turn="t1"), turns, {}, {}) == Match("t2", True)


def test_the_turns_of_subagents_are_nobody_s_answer() -> None:
    turns = [going("s2", "sub"), done("s1", "sub"), done("t1")]
    assert match_input(entry(baseline_turn="t1"), turns, {}, {}) is None
    assert match_input(entry(baseline_turn="t1"), [going("t2"), *turns], {}, {}) == Match("t2", False)


@pytest.mark.parametrize("status", ["failed", "cancelled", "completed"])
def test_a_turn_that_ended_badly_is_over_too(status: str) -> None:
    assert match_input(entry(), [Turn("t1", status)], {}, {}) == Match("t1", True)


# --- several inputs -------------------------------------------------------------------------------------------------


def test_a_turn_belongs_to_the_earlier_input_and_the_next_turn_to_the_next() -> None:
    later = entry(key="later", baseline_turn="t1")
    turns = [going("t3"), done("t2"), done("t1")]
    assert match_input(later, turns, {}, {"t2": "mine"}) == Match("t3", False)
    assert match_input(later, turns[1:], {}, {"t2": "mine"}) is None


def test_a_turn_an_input_already_has_is_still_its_own() -> None:
    assert match_input(entry(baseline_turn="t1"), [done("t2"), done("t1")], {}, {"t2": "mine"}) == Match("t2", True)


def test_a_match_once_made_is_kept_whatever_comes_after() -> None:
    known = entry(baseline_turn="t1", turn_id="t2")
    turns = [going("t3"), done("t2"), done("t1")]
    assert match_input(known, turns, {}, {"t2": "mine", "t3": "later"}) == Match("t2", True)


def test_a_matched_turn_the_list_no_longer_shows_says_nothing() -> None:
    assert match_input(entry(turn_id="t0"), [going("t3")], {}, {}) is None


# --- an input to a session at work ----------------------------------------------------------------------------------


def test_a_text_that_stands_in_the_open_turn_has_steered_it() -> None:
    steer = entry("And this", baseline_turn="t1", baseline_open=True)
    texts = {"t1": ["Hi", "And this"]}
    assert match_input(steer, [going("t1")], texts, {"t1": "first"}) == Match("t1", False)
    assert match_input(steer, [done("t2"), done("t1")], texts, {}) == Match("t1", True)


def test_a_steer_that_came_too_late_begins_a_turn() -> None:
    steer = entry("And this", baseline_turn="t1", baseline_open=True)
    assert match_input(steer, [going("t2"), done("t1")], {"t1": ["Hi"]}, {"t1": "first"}) == Match("t2", False)


def test_a_steer_that_shows_nowhere_yet_has_no_match() -> None:
    steer = entry("And this", baseline_turn="t1", baseline_open=True)
    assert match_input(steer, [going("t1")], {"t1": ["Hi"]}, {}) is None
    assert match_input(steer, [going("t1")], {}, {}) is None


def test_the_same_text_in_a_baseline_that_was_over_is_no_steer() -> None:
    assert match_input(entry(baseline_turn="t1"), [done("t1")], {"t1": ["Hi"]}, {}) is None


def test_an_input_may_have_steered_the_turn_an_earlier_input_began() -> None:
    later = entry("And this", key="later")
    claimed = {"t1": "first"}
    assert match_input(later, [going("t1")], {"t1": ["Hi", "And this"]}, claimed) == Match("t1", False)
    assert match_input(later, [going("t1")], {"t1": ["And this"]}, claimed) is None
    assert match_input(later, [going("t2"), done("t1")], {"t1": ["Hi"]}, claimed) == Match("t2", False)


# --- texts and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("element", "text"),
    [
        (inputs.message("Hi"), "Hi"),
        (inputs.message([{"role": "user", "content": [{"text": "a"}, {"image_url": "x"}, {"text": "b"}]}]), "ab"),
        (inputs.message([{"content": [{"text": "a"}]}, {"content": [{"text": "b"}]}]), "ab"),
        (inputs.CANCEL, ""),
        (b"", ""),
        (b"[]", ""),
        (b'{"input":"text"}', ""),
        (b"{", ""),
    ],
)
def test_the_text_of_an_input_is_what_its_item_will_show(element: bytes, text: str) -> None:
    assert text_of(element) == text


def test_the_newest_root_turn_is_the_first_without_a_subagent() -> None:
    assert newest_root([going("s", "sub"), done("t2"), done("t1")]) == done("t2")
    assert newest_root([going("s", "sub")]) is None
    assert newest_root([]) is None


def test_the_final_answer_is_the_output_and_comments_on_the_way_are_not() -> None:
    items = [message("Q", "user"), message("hm", phase="commentary"), message("A", phase="final_answer")]
    assert output_text(items) == "A"
    assert output_text([*items, message("B", phase="final_answer")]) == "AB"


def test_without_a_final_answer_the_last_words_are_the_output() -> None:
    assert output_text([message("one"), message("two"), message("Q", "user")]) == "two"
    assert output_text([message("Q", "user")]) == ""
    assert output_text([]) == ""


def test_a_result_holds_the_calls_of_its_turn_and_the_reason_of_a_bad_end() -> None:
    turn = Turn("turn_1", "failed", error=TurnError("server_error", "it broke"))
    mine, other = row(CallState.ACKED), row(CallState.ACKED, key("b", "turn_2"))
    result = result_of(SESSION, turn, [message("A")], [mine, other])
    assert (result.calls, result.output_text, result.ok) == ([mine], "A", False)
    assert result.error == {"code": "server_error", "message": "it broke"}
    assert repr(result) == "<TurnResult turn_1 failed, 1 calls, 1 characters>"


def test_a_good_result_has_no_error_and_may_have_no_usage_yet() -> None:
    result = result_of(SESSION, done("turn_1"), [], [])
    assert isinstance(result, TurnResult)
    assert (result.ok, result.error, result.usage, result.output_text) == (True, None, None, "")
