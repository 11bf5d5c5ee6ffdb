"""What a store promises about calls."""

from __future__ import annotations

import hashlib
from typing import Any

from answerback.model import ApprovalRecord, CallKey, CallRecord, CallState, LateRecord
from answerback.store.base import (
    DecideApproval,
    InsertCall,
    PutApproval,
    PutCheckpoint,
    PutLate,
    PutSubstitute,
    UseApproval,
)
from answerback.store.conformance.builders import (
    KEY,
    MakeStore,
    call_of,
    finished,
    moved,
    observed,
    opened,
    raises,
    started,
)


async def check_an_observed_call_is_read_back_as_it_was(make_store: MakeStore) -> None:
    """Every field of a call comes back, and its first transition with it."""
    record = CallRecord(
        key=KEY,
        name="refund",
        arguments='{"größe": "\\u0000"}'.encode(),
        arguments_hash="h",
        effects="idempotent",
        handler_version="v",
        is_async=True,
        deadline=9,
        next_at=8,
        hold_until=7,
        observed_at=1,
        reason="seen",
    )
    async with opened(make_store) as store:
        assert list(await store.write(InsertCall(record)).committed()) == [1]
        assert await call_of(store) == record
        (step,) = await store.transitions(KEY)
        assert (step.seq, step.at, step.source, step.target, step.reason) == (1, 1, "", "requested", "seen")
        assert step.incarnation == store.info.incarnation
        assert step.pid > 0


async def check_a_call_observed_twice_stays_the_first(make_store: MakeStore) -> None:
    """A second insert of a key counts 0, changes nothing and leaves no transition."""
    async with opened(make_store) as store:
        await store.write(observed(), started()).committed()
        assert list(await store.write(observed(name="other")).committed()) == [0]
        assert (await call_of(store)).name == "refund"
        assert (await call_of(store)).state is CallState.STARTED
        assert len(await store.transitions(KEY)) == 2


async def check_the_same_call_id_in_two_turns_is_two_calls(make_store: MakeStore) -> None:
    """All three parts of a key count."""
    other = CallKey("sess_1", "turn_2", "call_1")
    async with opened(make_store) as store:
        counts = await store.write(observed(), observed(other), started(other)).committed()
        assert list(counts) == [1, 1, 1]
        assert (await call_of(store)).state is CallState.REQUESTED
        assert (await call_of(store, other)).state is CallState.STARTED


async def check_an_update_applies_only_from_its_sources(make_store: MakeStore) -> None:
    """A state outside `sources` counts 0, and so does a call without a row."""
    async with opened(make_store) as store:
        await store.write(observed()).committed()
        assert list(await store.write(started()).committed()) == [1]
        assert list(await store.write(started(token="second", attempt=2)).committed()) == [0]  # noqa: S106
        missing = CallKey("sess_1", "turn_1", "nowhere")
        assert list(await store.write(started(missing)).committed()) == [0]
        record = await call_of(store)
        assert (record.token, record.attempt, record.started_at) == ("first", 1, 2)


async def check_an_outcome_is_taken_from_the_holder_of_the_token_only(make_store: MakeStore) -> None:
    """Another token, or another attempt, counts 0 and stores nothing."""
    async with opened(make_store) as store:
        await store.write(observed(), started()).committed()
        assert list(await store.write(finished(token="second")).committed()) == [0]  # noqa: S106
        later = moved(CallState.FINISHED, source=CallState.STARTED, attempt=2, changes={"outcome": b"x"})
        assert list(await store.write(later).committed()) == [0]
        assert (await call_of(store)).outcome is None
        assert list(await store.write(finished()).committed()) == [1]
        assert (await call_of(store)).outcome == b'"done"'


async def check_the_first_outcome_is_the_only_one(make_store: MakeStore) -> None:
    """A second outcome counts 0, whoever brings it; the first one's bytes and hash stay through every later move."""
    async with opened(make_store) as store:
        await store.write(observed(), started(), finished()).committed()
        for token in ("first", None):
            assert list(await store.write(finished(outcome=b"other", token=token)).committed()) == [0]
        move = moved(CallState.SUBMITTED, source=CallState.FINISHED, changes={"submitted_at": 4})
        assert list(await store.write(move).committed()) == [1]
        record = await call_of(store)
        assert record.outcome == b'"done"'
        assert record.outcome_hash == hashlib.sha256(b'"done"').hexdigest()
        assert record.state is CallState.SUBMITTED


async def check_every_move_leaves_a_transition(make_store: MakeStore) -> None:
    """The life of a call can be read: states, attempts, times and reasons, in order; failed moves leave none."""
    async with opened(make_store) as store:
        await store.write(observed(), started()).committed()
        await store.write(finished(token="wrong")).committed()  # noqa: S106
        await store.write(finished()).committed()
        again = moved(CallState.FINISHED, source=CallState.FINISHED, reason="asked again")
        await store.write(again).committed()
        steps = await store.transitions(KEY)
        assert [(step.seq, step.source, step.target) for step in steps] == [
            (1, "", "requested"),
            (2, "requested", "started"),
            (3, "started", "finished"),
            (4, "finished", "finished"),
        ]
        assert [step.attempt for step in steps] == [0, 1, 1, 1]
        assert [step.at for step in steps] == [1, 2, 3, 4]
        assert steps[-1].reason == "asked again"
        assert (await call_of(store)).reason == "asked again"


async def check_columns_a_write_may_not_change_are_refused_at_once(make_store: MakeStore) -> None:
    """Such a write raises ValueError where it is made, and queues nothing."""
    async with opened(make_store) as store:
        for changes in ({"state": "acked"}, {"outcome_hash": "x"}, {"nonsense": 1}, {"outcome": None}):

            async def write(changes: dict[str, Any] = changes) -> None:
                store.write(moved(CallState.ACKED, source=CallState.REQUESTED, changes=changes))

            await raises(ValueError, write)
        assert store.health.queued == 0


async def check_a_substitute_is_kept_once_and_asks_for_another_key(make_store: MakeStore) -> None:
    """The first substitute stays, is what will be sent, and bumps the epoch of the submission."""
    async with opened(make_store) as store:
        await store.write(observed(), started(), finished()).committed()
        sent = moved(CallState.SUBMITTED, source=CallState.FINISHED, changes={"submit_status": "ambiguous"})
        first = PutSubstitute(key=KEY, element=b"short", reason="too large", at=5)
        assert list(await store.write(sent, first).committed()) == [1, 1]
        second = PutSubstitute(key=KEY, element=b"other", reason="again", at=6)
        unknown = PutSubstitute(key=CallKey("s", "t", "c"), element=b"x", reason="", at=6)
        assert list(await store.write(second, unknown).committed()) == [0, 0]
        record = await call_of(store)
        assert (record.substitute, record.payload, record.outcome) == (b"short", b"short", b'"done"')
        assert (record.submit_epoch, record.submit_status) == (1, "none")


async def check_checkpoints_overwrite_by_name_and_late_returns_add_up(make_store: MakeStore) -> None:
    """What an attempt leaves besides its outcome."""
    async with opened(make_store) as store:
        await store.write(observed(), started()).committed()
        counts = await store.write(
            PutCheckpoint(key=KEY, attempt=1, name="a", value=b"1", at=3),
            PutCheckpoint(key=KEY, attempt=1, name="b", value=b"2", at=3),
            PutCheckpoint(key=KEY, attempt=1, name="a", value=b"3", at=4),
        ).committed()
        assert list(counts) == [1, 1, 1]
        assert await store.checkpoints(KEY) == {"a": b"3", "b": b"2"}
        lates = [LateRecord(key=KEY, attempt=n, at=n, kind="ok", element=b"x") for n in (1, 2)]
        assert list(await store.write(*map(PutLate, lates)).committed()) == [1, 1]
        assert await store.late(KEY) == lates


async def check_an_approval_is_decided_once_and_serves_the_arguments_it_was_asked_with(make_store: MakeStore) -> None:
    """Asked once, decided once; claimed by a start with the same digest only, and dated by the first."""
    async with opened(make_store) as store:
        await store.write(observed()).committed()
        assert await store.approval(KEY) is None
        unasked = DecideApproval(key=KEY, verdict="approved", at=4)
        ask = PutApproval(key=KEY, digest="d1", at=3)
        again = PutApproval(key=KEY, digest="d2", at=4)
        early = UseApproval(key=KEY, digest="d1", at=4)
        assert list(await store.write(unasked, ask, again, early).committed()) == [0, 1, 0, 0]
        yes = DecideApproval(key=KEY, verdict="approved", at=5, by="kim", reason="fine")
        no = DecideApproval(key=KEY, verdict="rejected", at=6)
        other = UseApproval(key=KEY, digest="d2", at=7)
        first, second = UseApproval(key=KEY, digest="d1", at=8), UseApproval(key=KEY, digest="d1", at=9)
        assert list(await store.write(yes, no, other, first, second).committed()) == [1, 0, 0, 1, 1]
        assert await store.approval(KEY) == ApprovalRecord(
            key=KEY,
            digest="d1",
            asked_at=3,
            decided_at=5,
            verdict="approved",
            decided_by="kim",
            reason="fine",
            used_at=8,
        )


async def check_calls_are_listed_by_session_state_and_age(make_store: MakeStore) -> None:
    """`open_calls` is oldest first and leaves closed ones out; `calls` is newest first, filtered and limited."""
    keys = [CallKey("sess_1", "turn_1", f"c{n}") for n in range(4)]
    other = CallKey("sess_2", "turn_1", "c0")
    async with opened(make_store) as store:
        await store.write(*map(observed, (*keys, other))).committed()
        gone = moved(CallState.OBSOLETE, source=CallState.REQUESTED, key=keys[1])
        await store.write(gone, started(keys[2])).committed()
        assert [record.key for record in await store.open_calls("sess_1")] == [keys[0], keys[2], keys[3]]
        assert [record.key for record in await store.calls()] == [other, *reversed(keys)]
        assert [record.key for record in await store.calls(session_id="sess_1", limit=2)] == [keys[3], keys[2]]
        states = (CallState.OBSOLETE, CallState.STARTED)
        assert [record.key for record in await store.calls(states=states)] == [keys[2], keys[1]]
        assert [record.key for record in await store.calls(states=(CallState.STARTED,))] == [keys[2]]
        assert await store.calls(states=()) == []
        missing = CallKey("sess_1", "turn_1", "nowhere")
        assert set(await store.calls_by_key([keys[1], missing])) == {keys[1]}
        assert await store.calls_by_key([]) == {}


async def check_many_calls_are_found_by_their_keys_at_once(make_store: MakeStore) -> None:
    """There is no limit to the number of keys."""
    keys = [CallKey("sess_1", f"turn_{n}", "c") for n in range(700)]
    async with opened(make_store) as store:
        await store.write(*map(observed, keys)).committed()
        assert set(await store.calls_by_key(keys)) == set(keys)


async def check_calls_are_found_by_a_prefix_of_their_id(make_store: MakeStore) -> None:
    """Any prefix of the public id, or the whole call_id; ten at most."""
    keys = [CallKey("sess_1", f"turn_{n}", "same") for n in range(12)]
    async with opened(make_store) as store:
        await store.write(*map(observed, keys)).committed()
        for prefix in (keys[3].digest, keys[3].digest[:20]):
            assert [record.key for record in await store.find_calls(prefix)] == [keys[3]]
        assert len(await store.find_calls("same")) == 10
        assert await store.find_calls("sam") == []
