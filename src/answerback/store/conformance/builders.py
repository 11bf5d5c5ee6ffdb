"""What the checks are made of: writes with fixed values, and a store opened for a block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio

from answerback.model import CallKey, CallRecord, CallState
from answerback.store.base import (
    InsertCall,
    Store,
    UpdateCall,
)

MakeStore: TypeAlias = Callable[[], Store]
Check: TypeAlias = Callable[[MakeStore], Awaitable[None]]

PATIENCE = 5.0
"""Seconds after which a wait counts as failed."""

KEY = CallKey("sess_1", "turn_1", "call_1")


def observed(key: CallKey = KEY, **fields: Any) -> InsertCall:
    """Return the observation of a call, with fixed values for what is not given."""
    defaults: dict[str, Any] = {"name": "refund", "arguments": b'{"n":1}', "arguments_hash": "h", "observed_at": 1}
    return InsertCall(CallRecord(key=key, **{**defaults, **fields}))


def started(key: CallKey = KEY, *, token: str = "first", attempt: int = 1) -> UpdateCall:  # noqa: S107 - an attempt's name
    """Return the start of an attempt at an observed call."""
    changes = {"token": token, "attempt": attempt, "started_at": 2}
    return UpdateCall(key=key, sources=(CallState.REQUESTED,), target=CallState.STARTED, at=2, changes=changes)


def finished(key: CallKey = KEY, *, outcome: bytes = b'"done"', token: str | None = "first") -> UpdateCall:  # noqa: S107 - an attempt's name
    """Return the end of a started call, by the holder of `token`."""
    return UpdateCall(
        key=key,
        sources=(CallState.STARTED, CallState.INDETERMINATE, CallState.FINISHED),
        target=CallState.FINISHED,
        at=3,
        token=token,
        changes={"outcome": outcome, "outcome_kind": "ok", "finished_at": 3},
    )


def moved(target: CallState, *, source: CallState, key: CallKey = KEY, **fields: Any) -> UpdateCall:
    """Return a plain move of a call."""
    return UpdateCall(key=key, sources=(source,), target=target, at=4, **fields)


@asynccontextmanager
async def opened(make_store: MakeStore) -> AsyncGenerator[Store]:
    """Open a store for the length of a block, and bound the block's time."""
    store = make_store()
    with anyio.fail_after(PATIENCE):
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()


async def call_of(store: Store, key: CallKey = KEY) -> CallRecord:
    """Return the row of a call that must be there."""
    return (await store.calls_by_key([key]))[key]


async def raises(kind: type[Exception], action: Callable[[], Awaitable[Any]]) -> None:
    """Assert that an action raises an error of this kind."""
    try:
        await action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
