"""What a store promises about its writer: order, batches, lazy writes."""

from __future__ import annotations

from typing import Any

import anyio

from answerback.errors import StoreError
from answerback.model import CallKey, CallState, SessionRecord
from answerback.store.base import (
    PutCheckpoint,
    PutSession,
)
from answerback.store.conformance.builders import (
    KEY,
    MakeStore,
    call_of,
    finished,
    observed,
    opened,
    raises,
    started,
)


async def check_writes_apply_in_the_order_they_were_made(make_store: MakeStore) -> None:
    """Whatever tasks made them, and however they are batched: a start never overtakes its observation."""
    keys = [CallKey("sess_1", "turn_1", f"c{n}") for n in range(200)]
    async with opened(make_store) as store:
        receipts: list[Any] = []
        for key in keys:
            store.write(observed(key), lazy=True)
            receipts += [store.write(started(key)), store.write(finished(key))]
        for receipt in receipts:
            assert list(await receipt.committed()) == [1]
        assert [record.key for record in await store.open_calls("sess_1")] == keys
        assert {record.state for record in await store.open_calls("sess_1")} == {CallState.FINISHED}


async def check_statements_on_one_call_keep_their_order_in_one_transaction(make_store: MakeStore) -> None:
    """Statements may be regrouped only across calls."""
    other = CallKey("sess_1", "turn_1", "call_2")
    async with opened(make_store) as store:
        counts = await store.write(
            started(),
            observed(),
            observed(other),
            started(),
            finished(),
            started(other),
            finished(other, token="second"),  # noqa: S106
        ).committed()
        assert list(counts) == [0, 1, 1, 1, 1, 1, 0]


async def check_a_compare_and_set_that_fails_does_not_undo_its_neighbours(make_store: MakeStore) -> None:
    """It is a 0 in the receipt; the other statements of the transaction apply."""
    other = CallKey("sess_1", "turn_1", "call_2")
    async with opened(make_store) as store:
        assert list(await store.write(observed(), finished(), observed(other)).committed()) == [1, 0, 1]
        assert set(await store.calls_by_key([KEY, other])) == {KEY, other}


async def check_a_transaction_that_cannot_be_applied_fails_alone_and_whole(make_store: MakeStore) -> None:
    """A checkpoint of an unknown call: its transaction leaves nothing, those before and behind it are committed."""
    keys = [CallKey("sess_1", "turn_1", f"c{n}") for n in range(3)]
    bad = PutCheckpoint(key=CallKey("no", "such", "call"), attempt=1, name="a", value=b"", at=1)
    async with opened(make_store) as store:
        first = store.write(observed(keys[0]), lazy=True)
        refused = store.write(observed(keys[1]), bad)
        last = store.write(observed(keys[2]))
        await raises(StoreError, refused.committed)
        assert refused.done
        assert [list(await receipt.committed()) for receipt in (first, last)] == [[1], [1]]
        assert set(await store.calls_by_key(keys)) == {keys[0], keys[2]}
        assert await store.transitions(keys[1]) == []
        assert store.health.degraded is None


async def check_a_cancelled_waiter_keeps_its_write(make_store: MakeStore) -> None:
    """The wait ends, the write does not."""
    async with opened(make_store) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write(observed()).committed()
        await store.flush()
        assert await call_of(store) is not None


async def check_lazy_writes_are_committed_without_being_asked_for(make_store: MakeStore) -> None:
    """An idle writer flushes them; a wait for one of them hurries."""
    async with opened(make_store) as store:
        receipt = store.write(observed(), lazy=True)
        assert not receipt.done
        while not receipt.done:  # noqa: ASYNC110 - every other way to wait for a receipt makes it urgent
            await anyio.sleep(0.005)
        hurried = store.write(started(), lazy=True)
        assert list(await hurried.committed()) == [1]


async def check_lazy_writes_ride_with_the_next_commit(make_store: MakeStore) -> None:
    """Nothing that is waited for leaves an earlier lazy write behind."""
    async with opened(make_store) as store:
        lazy = store.write(observed(), lazy=True)
        await store.write(PutSession(SessionRecord(local_id="l1"))).committed()
        assert lazy.done
        assert store.health.commits == 1


async def check_flush_covers_lazy_writes(make_store: MakeStore) -> None:
    """After it everything queued before is done, and nothing is queued."""
    async with opened(make_store) as store:
        await store.flush()
        receipts = [store.write(observed(), lazy=True), store.write(started(), lazy=True)]
        await store.flush()
        assert all(receipt.done for receipt in receipts)
        assert store.health.queued == 0


async def check_many_writes_share_commits(make_store: MakeStore) -> None:
    """Group commit: writes made together cost far fewer commits than there are of them."""
    keys = [CallKey("sess_1", "turn_1", f"c{n}") for n in range(64)]
    async with opened(make_store) as store:
        receipts = [store.write(observed(key), started(key)) for key in keys]
        for receipt in receipts:
            await receipt.committed()
        assert store.health.commits <= 2
        assert store.health.statements == 128


async def check_an_empty_write_is_done_at_once(make_store: MakeStore) -> None:
    """So that callers may splat a list that happens to be empty."""
    async with opened(make_store) as store:
        receipt = store.write()
        assert receipt.done
        assert list(await receipt.committed()) == []
