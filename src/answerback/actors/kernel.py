"""The running half of a Runtime: one task group in a task of its own, and the written order in which it ends.

It does not live in the caller's task, so that a cancelled caller, `asyncio.timeout`, or an `async with` entered and
left in different tasks (a fixture) can neither tear a handler from its outcome nor leak an ExceptionGroup.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.calls import CallRunner
from answerback.actors.journal import Journal
from answerback.actors.live import LiveSession
from answerback.actors.session import Shared
from answerback.actors.session_state import SessionState
from answerback.actors.settings import KernelSettings
from answerback.actors.supervisor import Supervisor
from answerback.errors import StoreError
from answerback.handlers.arguments import canonical_hash
from answerback.handlers.execute import Executor
from answerback.handlers.registry import Handlers
from answerback.model import CallKey, Observer, SessionRecord, Unobserved
from answerback.store.base import Store
from answerback.wire.events import Event

logger = logging.getLogger("answerback.runtime")

POSTS_IN_FLIGHT = 8
"""POSTs a process may have in flight; more only queue in the connection pool."""
POLL_STEP = 0.02
"""Seconds between looks at what a drain waits for."""


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a stop went. `clean` means that nothing was cut short and nothing is unsent."""

    cut_short: int = 0
    """Started calls whose handler was cancelled because the patience was over."""
    unsent: int = 0
    """Stored results the server does not have yet; the next process sends them."""

    @property
    def clean(self) -> bool:
        """Whether nothing is left over."""
        return not (self.cut_short or self.unsent)


class Kernel:
    """Runs actors and calls for as long as `serve` runs."""

    def __init__(
        self,
        *,
        store: Store,
        api: AgentsApi,
        handlers: Handlers,
        executor: Executor,
        settings: KernelSettings,
        now: Callable[[], int],
        rng: random.Random,
        deps: Any = None,
        observer: Observer | None = None,
    ) -> None:
        self.store = store
        self.api = api
        self.settings = settings
        self.live: dict[str, LiveSession] = {}
        self.failure: StoreError | None = None
        self.ready = anyio.Event()
        self.over = False
        """Whether `serve` has ended, in order or not."""
        self._handlers = handlers
        self._executor = executor
        self._now = now
        self._rng = rng
        self._deps = deps
        self._observer = executor.observer = observer or Unobserved()
        self._stop = anyio.Event()
        self._patience = 0.0
        self._hurry = anyio.Event()
        self.report = DrainReport()
        self.runner: CallRunner
        self.supervisor: Supervisor

    def __repr__(self) -> str:
        return f"<Kernel {len(self.live)} sessions>"

    async def serve(self) -> None:
        """Run until `stop`, then end in order: intake, handlers, outbox, actors. The store is closed by its owner."""
        async with anyio.create_task_group() as group:
            streams = self.settings.max_streams
            self.runner = CallRunner(
                group=group,
                store=self.store,
                handlers=self._handlers,
                executor=self._executor,
                powers=self,
                settings=self.settings.calls,
                now=self._now,
                escalate=self._fail,
                deps=self._deps,
            )
            shared = Shared(
                store=self.store,
                api=self.api,
                runner=self.runner,
                settings=self.settings.actors,
                post_gate=anyio.CapacityLimiter(POSTS_IN_FLIGHT),
                stream_slots=anyio.CapacityLimiter(streams) if streams else None,
                rng=self._rng,
                now=self._now,
                observer=self._observer,
            )
            self.supervisor = Supervisor(
                group,
                shared,
                restart_limit=self.settings.restart_limit,
                restart_period=self.settings.restart_period,
                escalate=self._fail,
                rng=self._rng,
            )
            self.ready.set()
            await self._stop.wait()
            with anyio.CancelScope(shield=True):
                await self._end()
            group.cancel_scope.cancel()

    def ended(self) -> None:
        """Note that nothing runs any more, and tell whoever waits for a session."""
        self.over = True
        self.ready.set()
        for live in self.live.values():
            live.close_subscribers()
            live.notify()

    def stop(self, patience: float) -> None:
        """Begin to end; handlers get `patience` seconds to finish."""
        self._patience = patience
        self._stop.set()

    def hurry(self) -> None:
        """Give up the patience of a stop that is under way."""
        self._hurry.set()

    def follow(self, record: SessionRecord) -> LiveSession:
        """Follow a session (again); return what is shared about it."""
        assert record.session_id is not None
        live = self.live.get(record.session_id)
        if live is None:
            journal = Journal(record.session_id, self.store, now=self._now, observer=self._observer)
            state = SessionState(record.session_id, hash_arguments=canonical_hash)
            live = self.live[record.session_id] = LiveSession(record, journal=journal, state=state)
        if record.state == "open":
            live.record = record
            self.supervisor.start(live)
        return live

    def progress(self, key: CallKey, message: str) -> None:
        """Hand a handler's progress to the session's local subscribers."""
        live = self.live.get(key.session_id)
        if live is not None:
            live.publish(
                Event(
                    type="answerback.call.progress",
                    session_id=key.session_id,
                    turn_id=key.turn_id,
                    item_id=key.call_id,
                    text=message,
                )
            )

    def _fail(self, error: StoreError) -> None:
        """A store that cannot keep its promises ends everything: without a journal nothing may run."""
        logger.critical("the store failed (%s); the runtime stops", type(error).__name__)
        self.failure = self.failure or error
        self.stop(0.0)
        for live in self.live.values():
            live.notify()

    async def _end(self) -> None:
        self.runner.accepting = False
        for job in list(self.runner.jobs.values()):
            if not job.entered:
                job.interrupt(stopping=True)
        await self._wait(lambda: not self.runner.jobs, self._patience)
        if self.runner.jobs:
            self.runner.stop_all()
            await self._wait(lambda: not self.runner.jobs, self.settings.calls.cancel_grace + 1.0, hurried=False)
        await self._wait(lambda: not self._unsent(), self.settings.submit_grace)
        self.report = DrainReport(cut_short=self.runner.cut_short, unsent=self._unsent())
        self.supervisor.stop_all()

    def _unsent(self) -> int:
        if self.failure is not None:
            return 0
        return sum(live.unsent for live in self.live.values())

    async def _wait(self, until: Callable[[], bool], seconds: float, *, hurried: bool = True) -> None:
        """Wait for a condition; a hurried stop waits no longer."""
        with anyio.move_on_after(seconds):
            while not until() and not (hurried and self._hurry.is_set()):  # noqa: ASYNC110 - a stop is rare, and waits for several things
                await anyio.sleep(POLL_STEP)
