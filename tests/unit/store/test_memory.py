"""What only the store in memory can do: die on demand, hold commits, fail them."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from answerback.errors import StoreClosedError, StoreCorruptError
from answerback.model import CallState
from answerback.store.conformance.builders import KEY, call_of, finished, observed, started
from answerback.store.memory import MemoryStore


async def test_a_crash_drops_what_is_not_committed_and_keeps_the_rest() -> None:
    store = MemoryStore()
    await store.open()
    await store.write(observed(), started()).committed()
    store.hold_commits()
    in_flight = store.write(finished())
    await anyio.wait_all_tasks_blocked()
    queued = store.write(finished(), lazy=True)
    store.crash()
    with anyio.fail_after(5):
        for receipt in (in_flight, queued):
            with pytest.raises(StoreClosedError):
                await receipt.committed()
    with pytest.raises(StoreClosedError):
        store.write(observed())
    incarnation = store._tables.incarnation
    with anyio.fail_after(5):
        await store.open()
        assert store.info.incarnation == incarnation + 1
        assert (await call_of(store)).state is CallState.STARTED
        assert list(await store.write(finished()).committed()) == [1]
        await store.aclose()


async def test_held_commits_wait_until_they_are_released() -> None:
    async with MemoryStore() as store:
        store.hold_commits()
        receipt = store.write(observed())
        await anyio.wait_all_tasks_blocked()
        assert not receipt.done
        assert await store.calls() == []
        store.release_commits()
        with anyio.fail_after(5):
            assert list(await receipt.committed()) == [1]


async def test_a_full_disk_degrades_and_passes() -> None:
    async with MemoryStore() as store:
        store.fail_commits("full")
        receipt = store.write(observed())
        with anyio.fail_after(5):
            while store.health.degraded is None:
                await anyio.lowlevel.checkpoint()
            store.fail_commits(None)
            assert list(await receipt.committed()) == [1]
        assert store.health.degraded is None


async def test_one_io_error_is_survived_whether_or_not_the_batch_landed() -> None:
    async with MemoryStore() as store:
        with anyio.fail_after(5):
            store.fail_commits("io")
            assert list(await store.write(observed()).committed()) == [1]
            store.fail_commits("io_landed")
            assert list(await store.write(started()).committed()) == [1]
        assert [step.target for step in await store.transitions(KEY)] == ["requested", "started"]


async def test_two_io_errors_in_a_row_end_it() -> None:
    store = MemoryStore()
    await store.open()
    store.fail_commits("io")
    receipt = store.write(observed())
    with anyio.fail_after(5):
        while store.health.degraded is None:
            await anyio.lowlevel.checkpoint()
        store.fail_commits("io")
        with pytest.raises(StoreCorruptError):
            await receipt.committed()
        await store.aclose()


async def test_a_rolled_back_store_can_be_played() -> None:
    async with MemoryStore(complete=False) as store:
        assert not store.info.complete
