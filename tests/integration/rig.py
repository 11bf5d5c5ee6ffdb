"""What the integration tests share: a real Runtime between a played server and a store, and ways to wait without sleeping.

Nothing here replaces a part of the library: the official client, HTTP over loopback, the kernel and the store are real.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import msgspec

from answerback.actors.live import LiveSession
from answerback.handlers.registry import Handlers
from answerback.model import CallRecord, CallState
from answerback.runtime import Runtime
from answerback.sessions import SessionRef
from answerback.store.base import Receipt, Store, Write
from answerback.store.memory import MemoryStore
from answerback.store.sqlite import SQLiteStore
from answerback.testing import Harness, Script, run_harness
from wire_player import PlayedSession, Result, WirePlayer, play

PATIENCE = 10.0
"""Seconds a wait may take on a busy machine before the test has failed; nothing here needs a tenth of it."""


class Writes:
    """Tells of every write to a store: whatever becomes of a call is one."""

    def __init__(self) -> None:
        self.event = anyio.Event()

    @contextmanager
    def of(self, store: Store) -> Generator[None]:
        """Listen to a store for the length of a block."""
        write = store.write

        def told(*statements: Write, lazy: bool = False) -> Receipt:
            receipt = write(*statements, lazy=lazy)
            self.event.set()
            self.event = anyio.Event()
            return receipt

        store.write = told  # type: ignore[method-assign]
        try:
            yield
        finally:
            store.write = write  # type: ignore[method-assign]


class Stage(msgspec.Struct, frozen=True):
    """A runtime at work against a played server."""

    player: WirePlayer
    runtime: Runtime
    store: Store
    writes: Writes
    refs: dict[str, SessionRef] = {}
    """The sessions `answering` attached to, by id."""

    @property
    def ref(self) -> SessionRef:
        """The session of `answering`."""
        return self.refs["sess_1"]

    async def answered(self, *call_ids: str) -> dict[str, Result]:
        """Return the accepted result of each of these calls, once the server has taken all of them."""

        def accepted() -> dict[str, Result]:
            return {result.call_id: result for result in self.player.results(status=202)}

        await self.player.until(lambda: set(call_ids) <= accepted().keys())
        return accepted()

    async def posted(self, call_id: str, times: int) -> list[Result]:
        """Return what was posted for a call, once it was posted so often."""
        await self.player.until(lambda: len(self.player.results(call_id)) >= times)
        return self.player.results(call_id)


@asynccontextmanager
async def running(
    player: WirePlayer, handlers: Handlers, *, store: Store | None = None, **options: Any
) -> AsyncGenerator[Stage]:
    """Run a Runtime against a player for the length of a block; `options` are the Runtime's."""
    store = MemoryStore() if store is None else store
    options.setdefault("drain_timeout", 1.0)
    writes = Writes()
    async with player.client() as client, Runtime(client, handlers=handlers, store=store, **options) as runtime:
        with writes.of(store):
            yield Stage(player, runtime, store, writes)


@asynccontextmanager
async def answering(
    session: PlayedSession, handlers: Handlers, *, store: Store | None = None, **options: Any
) -> AsyncGenerator[Stage]:
    """Play one session, attach a Runtime to it, and bound the whole block in time."""
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, handlers, store=store, **options) as stage:
            stage.refs[session.id] = await stage.runtime.attach(session.id)
            yield stage


@asynccontextmanager
async def answered_by(
    handlers: Handlers,
    script: Script | None = None,
    *,
    store: Store | None = None,
    knobs: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncGenerator[tuple[Harness, Runtime]]:
    """Run a Runtime against the harness of this process for the length of a block; `options` are the Runtime's."""
    store = MemoryStore() if store is None else store
    options.setdefault("drain_timeout", 1.0)
    async with (
        run_harness(script, knobs=knobs) as harness,
        Runtime(harness.client, handlers=handlers, store=store, **options) as runtime,
    ):
        yield harness, runtime


async def rows(store: MemoryStore | SQLiteStore) -> dict[str, CallRecord]:
    """Open a store that its Runtime has closed, and return its calls by call id."""
    async with store:
        return {record.key.call_id: record for record in await store.calls(limit=1000)}


def live_of(runtime: Runtime, session_id: str = "sess_1") -> LiveSession:
    """Return what the runtime keeps of a followed session."""
    kernel = runtime._kernel
    return kernel.live[session_id]


async def until(live: LiveSession, predicate: Callable[[], bool]) -> None:
    """Return once the predicate holds; it is asked again whenever the session's actor did something."""
    while not predicate():
        await live.changed.wait()


async def until_row(stage: Stage, call_id: str, predicate: Callable[[CallRecord], bool]) -> CallRecord:
    """Return the row of a call in the store once the predicate holds for it."""
    while True:
        written = stage.writes.event
        await stage.store.flush()
        for record in await stage.store.calls(limit=1000):
            if record.key.call_id == call_id and predicate(record):
                return record
        await written.wait()


async def until_state(stage: Stage, call_id: str, *states: CallState) -> CallRecord:
    """Return the row of a call once it is in one of these states in the store."""
    return await until_row(stage, call_id, lambda record: record.state in states)


async def until_taken(stage: Stage, call_id: str) -> CallRecord:
    """Return the row of a call once we know that the server has its result."""
    return await until_row(
        stage, call_id, lambda record: record.state is CallState.ACKED or record.submit_status == "accepted"
    )
