"""What a store promises about opening and closing."""

from __future__ import annotations

import anyio

from answerback.errors import RuntimeStateError, StoreClosedError
from answerback.model import CallState
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


async def check_closing_commits_what_is_queued(make_store: MakeStore) -> None:
    """Lazy writes included; the next opening finds them, under the next incarnation of the same store."""
    async with opened(make_store) as store:
        before = store.info
        store.write(observed(), lazy=True)
        store.write(started(), lazy=True)
    async with opened(make_store) as store:
        assert (await call_of(store)).state is CallState.STARTED
        assert store.info.store_id == before.store_id
        assert store.info.incarnation == before.incarnation + 1
        assert store.info.complete
        await store.write(finished()).committed()
        assert [step.incarnation - before.incarnation for step in await store.transitions(KEY)] == [0, 0, 1]


async def check_a_store_is_used_between_open_and_close_only(make_store: MakeStore) -> None:
    """RuntimeStateError before and when opened twice, StoreClosedError after; closing twice is allowed."""
    store = make_store()

    async def write() -> None:
        store.write(observed())

    async def info() -> object:
        return store.info

    await raises(RuntimeStateError, write)
    await raises(RuntimeStateError, info)
    await store.open()
    await raises(RuntimeStateError, store.open)
    await store.aclose()
    await store.aclose()
    await raises(StoreClosedError, write)
    await raises(StoreClosedError, lambda: store.calls())


async def check_a_cancelled_owner_loses_no_write(make_store: MakeStore) -> None:
    """The writer outlives the scope its store was opened in: closing under cancellation still commits all."""
    store = make_store()
    with anyio.CancelScope() as scope:
        await store.open()
        try:
            store.write(observed(), lazy=True)
            scope.cancel()
            await anyio.sleep_forever()
        finally:
            store.write(started())
            await store.aclose()
    async with opened(make_store) as store:
        assert (await call_of(store)).state is CallState.STARTED
