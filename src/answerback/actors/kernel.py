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
from anyio.abc import TaskGroup

from answerback.actors.api import AgentsApi
from answerback.actors.calls import CallRunner
from answerback.actors.discovery import Discover, Discovery
from answerback.actors.live import LiveSession
from answerback.actors.messages import ReadAgain
from answerback.actors.roster import Roster
from answerback.actors.rounds import Rounds
from answerback.actors.settings import KernelSettings
from answerback.actors.shared import Shared
from answerback.actors.supervisor import Supervisor
from answerback.errors import StoreError
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
AWAKENINGS = 8
"""Sessions that may be read from the store at once because something elsewhere said that they moved."""


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
        self.stopping = anyio.Event()
        """Set when it begins to end, for whatever reason."""
        self._patience = 0.0
        self._hurry = anyio.Event()
        self._grace = settings.calls.cancel_grace
        self._awaking: set[str] = set()
        self._awakenings = anyio.CapacityLimiter(AWAKENINGS)
        self.roster = Roster(
            store=store,
            observer=self._observer,
            secrecy=handlers.secrecy,
            now=now,
            start=lambda live: self.supervisor.start(live),
            stop=lambda session_id: self.supervisor.stop(session_id),
            busy=lambda session_id: any(key.session_id == session_id for key in self.runner.jobs),
        )
        self.report = DrainReport()
        self.rounds = Rounds(
            api=api, store=store, roster=self.roster, wake=self.wake, settings=settings.actors, rng=rng
        )
        self.discoveries: list[Discovery] = []
        self.runner: CallRunner
        self.supervisor: Supervisor
        self._group: TaskGroup

    def __repr__(self) -> str:
        return f"<Kernel {len(self.live)} sessions>"

    @property
    def live(self) -> dict[str, LiveSession]:
        """The sessions that live in this process."""
        return self.roster.live

    async def serve(self) -> None:
        """Run until `stop`, then end in order: intake, handlers, outbox, actors. The store is closed by its owner."""
        async with anyio.create_task_group() as group:
            self._group = group
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
                passivate=self.roster.passivate,
                stop=lambda session_id: self.supervisor.stop(session_id),
                observer=self._observer,
            )
            self.supervisor = Supervisor(
                group,
                shared,
                restart_limit=self.settings.restart_limit,
                restart_period=self.settings.restart_period,
                escalate=self._fail,
                ended=self.roster.ended,
                rng=self._rng,
            )
            self.supervisor.keep("the rounds", self.rounds.run)
            self.ready.set()
            await self.stopping.wait()
            with anyio.CancelScope(shield=True):
                await self._end()
            group.cancel_scope.cancel()

    def ended(self) -> None:
        """Note that nothing runs any more, and tell whoever waits for a session."""
        self.over = True
        self.ready.set()
        self.stopping.set()
        for live in self.live.values():
            live.close_subscribers()
            live.notify()

    def stop(self, patience: float) -> None:
        """Begin to end; handlers get `patience` seconds to finish."""
        self._patience = patience
        self.stopping.set()

    def hurry(self, *, grace: float | None = None) -> None:
        """Give up the patience of a stop that is under way: handlers are cancelled now.

        Args:
            grace: seconds they get then; None leaves them `cancel_grace`.
        """
        self._grace = self._grace if grace is None else min(grace, self._grace)
        self._hurry.set()

    def follow(self, record: SessionRecord) -> LiveSession:
        """Follow a session (again); return what is shared about it."""
        return self.roster.follow(record)

    def wake(self, session_id: str, reason: str) -> None:
        """Read a session now, also one that was passivated; sessions the store does not know are ignored."""
        live = self.live.get(session_id)
        if live is not None:
            # Nobody empties the mailbox of a session that is set aside.
            if live.record.state == "open":
                live.mailbox.tell(ReadAgain(reason))
        elif session_id not in self._awaking and not self.over:
            self._awaking.add(session_id)
            self._group.start_soon(self._awake, session_id)

    async def _awake(self, session_id: str) -> None:
        try:
            async with self._awakenings:
                await self.roster.awake(session_id)
        except StoreError as error:
            self._fail(error)
        finally:
            self._awaking.discard(session_id)

    def discover(self, discover: Discover) -> None:
        """Adopt sessions that match a filter from now on, until the end."""
        self.discoveries.append(
            Discovery(
                discover,
                api=self.api,
                store=self.store,
                roster=self.roster,
                wake=self.wake,
                settings=self.settings.actors,
                now=self._now,
                rng=self._rng,
            )
        )
        self.supervisor.keep("discovery", self.discoveries[-1].run)

    async def pause(self, session_id: str) -> bool:
        """Stop following a session until it is resumed; return whether it was followed or could have been."""
        if not await self.roster.put_aside(session_id, "paused", "paused"):
            return False
        for job in list(self.runner.jobs.values()):
            if job.key.session_id == session_id and not job.entered:
                job.interrupt(stopping=True)
        return True

    async def decided(self, key: CallKey) -> None:
        """Act on a decision about a call that is in the store."""
        live = self.live.get(key.session_id)
        if live is not None:
            await live.journal.refresh([key])
            job = self.runner.jobs.get(key)
            if job is not None:
                job.decided.set()
        self.wake(key.session_id, "a call was decided")

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
        self.supervisor.stop_common()
        self.runner.accepting = False
        for job in list(self.runner.jobs.values()):
            if not job.entered:
                job.interrupt(stopping=True)
        await self._wait(lambda: not self.runner.jobs, self._patience)
        if self.runner.jobs:
            self.runner.settings = msgspec.structs.replace(self.runner.settings, cancel_grace=self._grace)
            self._executor.cancel_grace = self._grace
            self.runner.stop_all()
            await self._wait(lambda: not self.runner.jobs, self._grace + 1.0, hurried=False)
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
