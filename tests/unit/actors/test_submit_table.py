"""What an answer to a POST of results means, and what goes into one POST."""

from __future__ import annotations

import pytest

from answerback.actors.submit import MAX_BYTES, MAX_MEMBERS, Answer, interpret, take
from answerback.model import CallState
from unit.actors.desk import race, refusal
from unit.actors.rows import key, row

# status                     alone              in a batch
ANSWERS = {
    400: (Answer.SUBSTITUTE, Answer.SPLIT),
    401: (Answer.FORBIDDEN, Answer.FORBIDDEN),
    402: (Answer.READ, Answer.SPLIT),
    403: (Answer.FORBIDDEN, Answer.FORBIDDEN),
    404: (Answer.READ, Answer.SPLIT),
    405: (Answer.READ, Answer.SPLIT),
    407: (Answer.READ, Answer.SPLIT),
    408: (Answer.WAIT, Answer.WAIT),
    409: (Answer.READ, Answer.SPLIT),
    413: (Answer.SUBSTITUTE, Answer.SPLIT),
    422: (Answer.SUBSTITUTE, Answer.SPLIT),
    425: (Answer.WAIT, Answer.WAIT),
    429: (Answer.WAIT, Answer.WAIT),
    500: (Answer.WAIT, Answer.WAIT),
    502: (Answer.WAIT, Answer.WAIT),
    503: (Answer.WAIT, Answer.WAIT),
    504: (Answer.WAIT, Answer.WAIT),
    529: (Answer.WAIT, Answer.WAIT),
    302: (Answer.READ, Answer.SPLIT),
    None: (Answer.WAIT, Answer.WAIT),
}


@pytest.mark.parametrize("status", ANSWERS)
def test_an_answer_is_read_by_its_status_and_the_size_of_the_batch(status: int | None) -> None:
    alone, together = ANSWERS[status]
    assert interpret(refusal(status), members=1, call_id="c") is alone
    assert interpret(refusal(status), members=2, call_id="c") is together


@pytest.mark.parametrize("status", ANSWERS)
def test_whatever_says_when_to_come_back_is_waited_for(status: int | None) -> None:
    for members in (1, 2):
        assert interpret(refusal(status, retry_after=1.0), members=members, call_id="c") is Answer.WAIT
        assert interpret(refusal(status, retry_after=0.0), members=members, call_id="c") is Answer.WAIT


@pytest.mark.parametrize("members", [1, 2, 64])
def test_no_error_is_an_acceptance_whatever_the_size(members: int) -> None:
    assert interpret(None, members=members, call_id="c") is Answer.ACCEPTED


def test_an_unknown_call_may_be_one_that_is_not_registered_yet() -> None:
    assert interpret(race("c"), members=1, call_id="c") is Answer.RACE


@pytest.mark.parametrize(
    ("status", "text", "answer"),
    [
        (400, "function call c belongs to a different managed agent turn", Answer.SUBSTITUTE),
        (400, "output must be a string or an array of parts", Answer.SUBSTITUTE),
        (409, "Unknown pending tool call: c", Answer.READ),
        (404, "Unknown pending tool call: c", Answer.READ),
        (503, "Unknown pending tool call: c", Answer.WAIT),
    ],
)
def test_only_the_known_text_of_a_400_is_the_race(status: int, text: str, answer: Answer) -> None:
    assert interpret(refusal(status, text), members=1, call_id="c") is answer


def test_an_unknown_call_in_a_batch_does_not_hold_back_its_siblings() -> None:
    assert interpret(race("c"), members=2, call_id="c") is Answer.SPLIT


# --- take -----------------------------------------------------------------------------------------------------------


def taken(*sizes: int) -> int:
    records = [row(CallState.FINISHED, key(str(at)), outcome=b"x" * size) for at, size in enumerate(sizes)]
    chosen = take(iter(records))
    assert chosen == tuple(record.key for record in records[: len(chosen)])
    return len(chosen)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0),
        ([10], 1),
        ([10, 10, 10], 3),
        ([10] * MAX_MEMBERS, MAX_MEMBERS),
        ([10] * (MAX_MEMBERS + 1), MAX_MEMBERS),
        ([MAX_BYTES], 1),
        ([MAX_BYTES + 1], 1),
        ([MAX_BYTES, 1], 1),
        ([1, MAX_BYTES], 1),
        ([1, MAX_BYTES - 1], 2),
        ([1, MAX_BYTES - 1, 1], 2),
        ([MAX_BYTES * 3, 1, 1], 1),
    ],
)
def test_a_post_takes_what_is_ready_in_order_within_its_bounds(sizes: list[int], count: int) -> None:
    assert taken(*sizes) == count


def test_the_bytes_that_count_are_those_that_are_sent() -> None:
    large = row(CallState.FINISHED, key("a"), outcome=b"x" * MAX_BYTES, substitute=b"small")
    assert len(take([large, row(CallState.FINISHED, key("b"))])) == 2
