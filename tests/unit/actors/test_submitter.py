"""Results are sent until the server has them: together where they are ready together, byte for byte the same."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from answerback.actors.messages import FetchRefused, ReadAgain
from answerback.actors.submit import MAX_MEMBERS, RACE_PAUSES
from answerback.errors import ApiError
from answerback.model import CallKey, CallState, Outcome
from unit.actors.desk import NOW, Desk, calls_of, desk, key_of, race, refusal, until
from unit.actors.rows import key, row

virtual_time = pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="trio in virtual time")]
)


def due_in(at: Desk) -> float:
    """Return how many seconds after the last POST the waiting batch is sent."""
    (batch,) = at.submitter._batches
    return batch.due - at.api.posts[-1].at


async def test_what_is_ready_together_travels_together() -> None:
    async with desk() as at:
        keys = await at.finished("a", "b", "c")
        at.submit(*keys)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a", "b", "c"]]
        assert at.api.posts[0].key == key_of(keys)
        for one in keys:
            record = at.record(one)
            assert (record.state, record.submit_status, record.submitted_at) == (CallState.SUBMITTED, "accepted", NOW)
        assert not at.submitter.busy


async def test_while_one_post_is_in_flight_the_rest_gathers_for_the_next() -> None:
    async with desk() as at:
        a, b, c = await at.finished("a", "b", "c")
        at.api.hold()
        at.submit(a)
        await at.quiet()
        at.submit(b)
        await at.quiet()
        at.submit(c)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a"]]
        at.api.release()
        await at.quiet()
        assert calls_of(at.api.posts) == [["a"], ["b", "c"]]


async def test_nothing_waits_for_company() -> None:
    async with desk() as at:
        for call_id in ("a", "b"):
            at.submit(*await at.finished(call_id))
            await at.quiet()
        assert calls_of(at.api.posts) == [["a"], ["b"]]


async def test_more_than_a_post_may_hold_goes_in_several() -> None:
    async with desk() as at:
        at.submit(*await at.finished(*(f"{n:03}" for n in range(MAX_MEMBERS + 5))))
        await at.quiet()
        assert [len(post.calls) for post in at.api.posts] == [MAX_MEMBERS, 5]


async def test_adding_a_call_that_waits_or_is_in_flight_changes_nothing() -> None:
    async with desk() as at:
        keys = await at.finished("a", "b")
        at.api.hold()
        at.submit(keys[0], keys[0])
        await at.quiet()
        at.submit(*keys, *keys)
        at.api.release()
        await at.quiet()
        at.submit(*keys)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a"], ["b"]]


@pytest.mark.parametrize("status", [400, 404, 409, 413, 402])
async def test_a_refused_batch_is_sent_one_by_one_at_once(status: int) -> None:
    async with desk() as at:
        keys = await at.finished("a", "b", "c")
        at.api.script = [refusal(status), None, None, None]
        at.submit(*keys)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a", "b", "c"], ["a"], ["b"], ["c"]]
        assert [post.key for post in at.api.posts] == [key_of(keys), *(key_of([one]) for one in keys)]
        assert {at.record(one).submit_status for one in keys} == {"accepted"}


async def test_one_stale_call_in_a_batch_costs_its_siblings_nothing() -> None:
    async with desk() as at:
        a, b, c = await at.finished("a", "b", "c")
        at.api.stale = {"b"}
        at.submit(a, b, c)
        await at.quiet()
        assert [at.record(one).submit_status for one in (a, b, c)] == ["accepted", "none", "accepted"]


# --- waiting --------------------------------------------------------------------------------------------------------


async def test_a_batch_that_is_told_to_wait_holds_nothing_else_back() -> None:
    async with desk() as at:
        a, b, c = await at.finished("a", "b", "c")
        at.api.script = [refusal(429, retry_after=3600.0)]
        at.submit(a, b)
        await at.quiet()
        assert due_in(at) == pytest.approx(3600, abs=5)
        at.submit(c)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a", "b"], ["c"]]
        assert at.record(c).submit_status == "accepted"
        assert at.submitter.busy


@virtual_time
async def test_after_the_wait_the_same_bytes_go_under_the_same_key() -> None:
    async with desk() as at:
        a, b, c = await at.finished("a", "b", "c")
        at.api.script = [refusal(429, retry_after=3600.0)]
        at.submit(a, b)
        await at.api.arrived(1)
        at.submit(c)
        again = await at.api.arrived(3)
        first = at.api.posts[0]
        assert (again.body, again.key) == (first.body, first.key)
        assert again.at - first.at == pytest.approx(3600)
        await until(lambda: not at.submitter.busy)


UNCLEAR = [refusal(500), refusal(503), refusal(429), refusal(408), refusal(None, "no answer")]


@pytest.mark.parametrize("error", UNCLEAR, ids=lambda error: str(error.status))
@virtual_time
async def test_an_unclear_answer_is_followed_by_the_same_bytes_under_the_same_key(error: ApiError) -> None:
    async with desk() as at:
        keys = await at.finished("a", "b")
        at.api.script = [error] * 3
        at.submit(*keys)
        await at.api.arrived(4)
        assert len({(post.body, post.key) for post in at.api.posts}) == 1
        pauses = [later.at - sooner.at for sooner, later in zip(at.api.posts, at.api.posts[1:], strict=False)]
        assert all(pause > 0 for pause in pauses)
        assert pauses == sorted(pauses)
        await until(lambda: not at.submitter.busy)


async def test_an_unclear_answer_is_noted_as_one() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [refusal(503, retry_after=3600.0)]
        at.submit(a)
        await at.quiet()
        stored = await at.stored(a)
        assert (stored.state, stored.submit_status) == (CallState.SUBMITTED, "ambiguous")


async def test_come_back_at_once_is_still_a_pause() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.always = refusal(429, retry_after=0.0)
        at.submit(a)
        await at.quiet()
        assert due_in(at) > 0.1


async def test_a_definite_refusal_that_says_when_to_come_back_is_not_split() -> None:
    async with desk() as at:
        keys = await at.finished("a", "b")
        at.api.script = [refusal(409, retry_after=3600.0)]
        at.submit(*keys)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a", "b"]]
        assert due_in(at) == pytest.approx(3600, abs=5)


async def test_a_restarted_sender_uses_the_same_key_for_the_same_members() -> None:
    async with desk() as at:
        keys = await at.finished("a", "b")
        at.api.script = [refusal(None, retry_after=3600.0)]
        at.submit(*keys)
        await at.quiet()
        await at.store.flush()
        at.store.crash()
        await at.store.open()
        later = Desk(at.store)
        await later.journal.load()
        async with anyio.create_task_group() as group:
            group.start_soon(later.submitter.run)
            later.submit(*reversed(keys))
            await at.quiet()
            group.cancel_scope.cancel()
        assert later.api.posts[0].key == at.api.posts[0].key


# --- the race -------------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_call_that_may_not_be_registered_yet_is_tried_three_times_soon_and_then_looked_up() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [race("a")] * 4
        at.submit(a)
        await at.api.arrived(3)
        assert at.told() == []
        fourth = await at.api.arrived(4)
        times = [post.at - at.api.posts[0].at for post in at.api.posts]
        assert times == pytest.approx([0.0, RACE_PAUSES[0], sum(RACE_PAUSES[:2]), sum(RACE_PAUSES)])
        fifth = await at.api.arrived(5)
        assert [type(message) for message in at.told()] == [ReadAgain]
        assert fifth.at > fourth.at
        assert len({(post.body, post.key) for post in at.api.posts}) == 1
        await until(lambda: at.record(a).submit_status == "accepted")


@virtual_time
async def test_a_registration_within_the_race_needs_no_look() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [race("a"), race("a"), None]
        at.submit(a)
        await at.api.arrived(3)
        await until(lambda: not at.submitter.busy)
        assert at.told() == []


@pytest.mark.parametrize("status", [409, 404, 402, 407])
async def test_what_only_a_retrieve_can_tell_is_looked_up_at_once_and_keeps_its_bytes(status: int) -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.always = refusal(status)
        at.submit(a)
        await at.quiet()
        assert {type(message) for message in at.told()} == {ReadAgain}
        record = at.record(a)
        assert (record.state, record.submit_status, record.substitute) == (CallState.FINISHED, "none", None)
        assert due_in(at) > 0


@virtual_time
async def test_a_conflict_for_a_call_that_stays_listed_is_retried_under_the_same_key() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [refusal(409)] * 3
        at.submit(a)
        await at.api.arrived(4)
        assert len({(post.body, post.key) for post in at.api.posts}) == 1
        await until(lambda: at.record(a).submit_status == "accepted")


async def test_a_closed_call_is_forgotten_and_the_rest_of_its_batch_gets_a_key_of_its_own() -> None:
    async with desk() as at:
        a, b = await at.finished("a", "b")
        at.api.script = [refusal(503, retry_after=3600.0)]
        at.submit(a, b)
        await at.quiet()
        at.journal.move(a, CallState.ACKED, reason="seen")
        at.submitter._batches[0] = msgspec.structs.replace(at.submitter._batches[0], due=0.0)
        at.submitter._changed.set()
        await at.quiet()
        assert calls_of(at.api.posts) == [["a", "b"], ["b"]]
        assert at.api.posts[1].key == key_of([b])
        assert at.record(a).state is CallState.ACKED


async def test_a_batch_whose_calls_are_all_closed_is_never_sent() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [refusal(503, retry_after=3600.0)]
        at.submit(a)
        await at.quiet()
        at.journal.move(a, CallState.OBSOLETE, reason="over")
        at.submit(*await at.finished("b"))
        await at.quiet()
        assert calls_of(at.api.posts) == [["a"], ["b"]]
        assert not at.submitter.busy


# --- what may leave at all ------------------------------------------------------------------------------------------

UNSENDABLE: list[tuple[CallState, dict[str, Any]]] = [
    (CallState.REQUESTED, {}),
    (CallState.WAITING_APPROVAL, {}),
    (CallState.STARTED, {}),
    (CallState.INDETERMINATE, {}),
    (CallState.ACKED, {}),
    (CallState.OBSOLETE, {"outcome": b"{}"}),
    (CallState.OBSOLETE_UNKNOWN, {}),
    (CallState.SUPERSEDED, {}),
    (CallState.SUBMITTED, {"submit_status": "accepted"}),
]


@pytest.mark.parametrize(("state", "changes"), UNSENDABLE, ids=lambda value: getattr(value, "value", ""))
async def test_only_a_finished_call_without_a_yes_is_sent(state: CallState, changes: dict[str, Any]) -> None:
    async with desk() as at:
        at.submit(*await at.put(row(state, key("a"), **changes)))
        await at.quiet()
        assert at.api.posts == []
        assert not at.submitter.busy


async def test_a_call_without_a_row_is_not_sent() -> None:
    async with desk() as at:
        at.submit(key("stranger"))
        await at.quiet()
        assert at.api.posts == []


async def test_a_result_leaves_only_after_its_commit() -> None:
    async with desk() as at:
        (a,) = await at.put(row(CallState.STARTED, key("a")))
        at.store.hold_commits()
        async with anyio.create_task_group() as group:
            outcome = Outcome(kind="ok", output="done")
            group.start_soon(_finish, at, a, outcome)
            await at.quiet()
            at.submit(a)
            await at.quiet()
            assert at.api.posts == []
            at.store.release_commits()
        at.submit(a)
        await at.quiet()
        assert calls_of(at.api.posts) == [["a"]]


async def _finish(at: Desk, call: CallKey, outcome: Outcome) -> None:
    assert await at.journal.finish(call, outcome, token="token", sources=(CallState.STARTED,))


async def test_a_call_closed_while_it_waits_for_a_connection_is_not_sent() -> None:
    async with desk() as at:
        a, b = await at.finished("a", "b")
        borrowers = [object() for _ in range(int(at.gate.total_tokens))]
        for one in borrowers:
            at.gate.acquire_on_behalf_of_nowait(one)
        at.submit(a, b)
        await at.quiet()
        at.journal.move(a, CallState.OBSOLETE, reason="over")
        at.gate.release_on_behalf_of(borrowers[0])
        await at.quiet()
        assert calls_of(at.api.posts) == [["b"]]
        assert at.api.posts[0].key == key_of([b])


async def test_a_post_makes_every_earlier_get_say_nothing_about_its_calls() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        sent_at = at.journal.tick()
        at.api.hold()
        at.submit(a)
        await at.quiet()
        assert at.journal.entries[a].touched > sent_at
        at.api.release()
        during = at.journal.tick()
        await at.quiet()
        assert at.journal.entries[a].touched > during


async def test_an_answer_does_not_reopen_what_was_closed_while_it_was_on_its_way() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.hold()
        at.submit(a)
        await at.quiet()
        at.journal.move(a, CallState.ACKED, reason="its output item was seen")
        at.api.release()
        await at.quiet()
        assert (await at.stored(a)).state is CallState.ACKED


# --- substitutes ----------------------------------------------------------------------------------------------------


@virtual_time
async def test_a_definitely_refused_result_is_replaced_once_and_under_another_key() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        original = at.record(a).outcome
        at.api.script = [refusal(413), refusal(400), refusal(400)]
        at.submit(a)
        last = await at.api.arrived(4)
        bodies = [post.body for post in at.api.posts]
        assert b'"HTTP 413"' in bodies[1]
        assert bodies[1:] == [bodies[1]] * 3
        assert [post.key for post in at.api.posts] == [key_of([a]), *[key_of([a], epoch=1)] * 3]
        assert last.at - at.api.posts[2].at == pytest.approx(30.0)
        await until(lambda: at.record(a).submit_status == "accepted")
        stored = await at.stored(a)
        assert (stored.outcome, stored.submit_epoch) == (original, 1)


async def test_a_refused_member_of_a_batch_is_replaced_alone() -> None:
    async with desk() as at:
        a, b = await at.finished("a", "b")
        at.api.script = [refusal(413), refusal(413), None, None]
        at.submit(a, b)
        await at.quiet()
        assert [at.record(one).substitute is not None for one in (a, b)] == [True, False]
        assert {at.record(one).submit_status for one in (a, b)} == {"accepted"}


async def test_the_replacement_leaves_only_after_its_commit() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [refusal(413)]
        at.store.hold_commits()
        at.submit(a)
        await at.quiet()
        assert len(at.api.posts) == 1
        at.submit(a)
        await at.quiet()
        assert len(at.api.posts) == 1
        at.store.release_commits()
        await at.quiet()
        assert len(at.api.posts) == 2


async def test_a_call_closed_while_it_was_refused_gets_no_replacement() -> None:
    async with desk() as at:
        (a,) = await at.finished("a")
        at.api.script = [refusal(413)]
        at.api.hold()
        at.submit(a)
        await at.quiet()
        at.journal.move(a, CallState.OBSOLETE, reason="over")
        at.api.release()
        await at.quiet()
        assert (await at.stored(a)).substitute is None
        assert len(at.api.posts) == 1


# --- refused credentials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_stop_the_session_and_keep_the_bytes(status: int) -> None:
    async with desk() as at:
        keys = await at.finished("a", "b")
        at.api.script = [refusal(status)]
        at.submit(*keys)
        await at.quiet()
        assert at.told() == [FetchRefused(status)]
        assert {at.record(one).state for one in keys} == {CallState.FINISHED}
        assert due_in(at) > 20


async def test_the_sender_says_what_waits() -> None:
    async with desk() as at:
        a, b = await at.finished("a", "b")
        at.api.hold()
        at.submit(a)
        await at.quiet()
        at.submit(b)
        assert repr(at.submitter) == "<Submitter sess_1 1 ready, 1 waiting>"
        at.api.release()
        await at.quiet()
        assert repr(at.submitter) == "<Submitter sess_1 0 ready, 0 waiting>"
        assert at.submitter.posts == 2
