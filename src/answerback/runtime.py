"""Runtime: the composition root. It owns the store, the HTTP pools and the kernel, and hands out session refs."""

from __future__ import annotations

import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import anyio
import msgspec

from answerback.actors.api import AgentsApi, OpenAIAgentsApi, retried
from answerback.actors.clients import Clients
from answerback.actors.kernel import DrainReport, Kernel
from answerback.actors.messages import ReadAgain
from answerback.actors.opening import Opener
from answerback.actors.settings import ActorSettings, CallSettings, KernelSettings
from answerback.actors.status import RuntimeStatus, status_of
from answerback.decisions import approve, decide, reject
from answerback.errors import ConfigurationError, RuntimeStateError, SessionError
from answerback.handlers.detached import Detached, Raised
from answerback.handlers.execute import Executor
from answerback.handlers.policy import Verdict
from answerback.handlers.registry import Handlers
from answerback.model import CallRecord, CallState, Observer, OnInterrupted, SessionRecord
from answerback.names import find_call
from answerback.sessions import SessionRef, not_running
from answerback.store.base import Store, UpdateSession

if TYPE_CHECKING:
    from openai import AsyncOpenAI

logger = logging.getLogger("answerback.runtime")

ResultT = TypeVar("ResultT")


class Runtime:
    """Answers the function calls of the sessions it follows.

    It follows the sessions of its store that have something open, and those it is given by `open`, `create` and
    `attach`; it adopts nothing by itself. Use it as an async context manager, on asyncio or trio. Leaving the block
    stops in order: no new calls, running handlers finish (`drain_timeout`), outcomes are sent, the store is closed.

    Args:
        client: an official `AsyncOpenAI`, used unchanged and never closed here.
        handlers: the functions to answer.
        store: where the journal lives; opened and closed here.
        max_concurrency: handlers that may run at once; further calls wait in order of arrival.
        sync_threads: threads for handlers that are plain functions.
        stream_idle_timeout: seconds of silence on a stream after which the session is read.
        poll_interval: seconds between slow reads of every followed session.
        drain_timeout: seconds running handlers get to finish when the block is left.
        submit_grace: seconds their outcomes then get to be sent.
        cancel_grace: seconds a cancelled handler gets before it is abandoned.
        hold_deadline: seconds an undecided call waits for its verify hook or a person before it is answered.
        restart_limit: crashes of one session's actor within 60 seconds before the session is set aside.
        max_streams: live event streams; further sessions are polled, and 0 polls them all. Default: 900 in a pool
            of their own, 20 when the client has a custom http client.
        stream_client: an official client for the streams alone.
        unhandled: "answer" answers a function nobody declared at once, and holds one that the session declares but
            this runtime lacks (a rolling deploy may own it); "hold" holds both. Held calls end with `hold_deadline`.
        on_interrupted: what follows a call whose outcome nobody can tell, where its tool does not say.
        deps: handed to handlers as `ctx.deps`.
        observer: told of every move of a call, for metrics and traces; see `answerback.model.Observer`.
        rng: randomness of the backoffs.
        clock: wall clock, microseconds since the epoch.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        *,
        handlers: Handlers,
        store: Store,
        max_concurrency: int = 100,
        sync_threads: int = 32,
        stream_idle_timeout: float = 60.0,
        poll_interval: float = 45.0,
        drain_timeout: float = 25.0,
        submit_grace: float = 5.0,
        cancel_grace: float = 2.0,
        hold_deadline: float = 600.0,
        restart_limit: int = 5,
        max_streams: int | None = None,
        stream_client: AsyncOpenAI | None = None,
        unhandled: Literal["answer", "hold"] = "answer",
        on_interrupted: OnInterrupted = "tell_model",
        deps: Any = None,
        observer: Observer | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        for name, value in (("max_concurrency", max_concurrency), ("sync_threads", sync_threads)):
            if value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        for name, seconds in (("stream_idle_timeout", stream_idle_timeout), ("poll_interval", poll_interval)):
            if not seconds > 0:
                raise ConfigurationError(f"{name} must be more than 0 seconds, not {seconds}")
        self._store = store
        self._handlers = handlers
        self._clients = Clients(client, stream_client, max_streams=max_streams)
        self._drain_timeout = drain_timeout
        self._rng = rng or random.Random()
        self._clock = clock or _wall_clock
        self._deps = deps
        self._observer = observer
        self._sync_threads = sync_threads
        self._settings = KernelSettings(
            calls=CallSettings(
                max_concurrency=max_concurrency,
                cancel_grace=cancel_grace,
                hold_deadline=hold_deadline,
                on_interrupted=on_interrupted,
                unhandled=unhandled,
            ),
            actors=ActorSettings(stream_idle_timeout=stream_idle_timeout, poll_interval=poll_interval),
            restart_limit=restart_limit,
            submit_grace=submit_grace,
            max_streams=self._clients.max_streams,
        )
        self._api: AgentsApi = OpenAIAgentsApi(self._clients.requests, self._clients.streams)
        self._kernel: Kernel | None = None
        self._task: Detached[None] | None = None
        self._opener: Opener | None = None
        self._drained = False

    def __repr__(self) -> str:
        state = "running" if self._kernel is not None else "not running"
        return f"<Runtime {state}, {len(self._handlers)} tools, {self._store!r}>"

    # --- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._kernel is not None or self._drained:
            raise RuntimeStateError("a Runtime runs once; make a new one for another `async with`")
        await self._store.open()
        executor = Executor(
            threads=self._sync_threads,
            cancel_grace=self._settings.calls.cancel_grace,
            context=contextvars.copy_context(),
            on_exception=self._handlers.on_exception,
        )
        kernel = Kernel(
            store=self._store,
            api=self._api,
            handlers=self._handlers,
            executor=executor,
            settings=self._settings,
            now=self.now,
            rng=self._rng,
            deps=self._deps,
            observer=self._observer,
        )
        self._opener = Opener(store=self._store, api=self._api, handlers=self._handlers, rng=self._rng, now=self.now)
        self._kernel = kernel
        # In a task of its own: no cancel scope or timeout of the caller may tear a handler from its outcome.
        self._task = Detached(
            lambda: _serve(kernel, executor), context=contextvars.copy_context(), name="answerback runtime"
        )
        await kernel.ready.wait()
        try:
            await self._resume(kernel)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.drain(0.0)
            raise
        return self

    async def _resume(self, kernel: Kernel) -> None:
        """Follow what an earlier process left open."""
        for record in await self._store.unfinished_sessions():
            if record.session_id is not None:
                kernel.follow(record)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A cancelled block still ends in order; what arrives here on asyncio is one native cancel, which hurries.
        with anyio.CancelScope(shield=True):
            await self.drain()
        report = self._kernel.report if self._kernel is not None else DrainReport()
        if not report.clean:
            logger.warning("stopped with work left: %s cut short, %s unsent", report.cut_short, report.unsent)
        failure = self._kernel.failure if self._kernel is not None else None
        self._kernel = None
        if failure is not None and exc is None:
            raise failure

    async def drain(self, timeout: float | None = None) -> DrainReport:
        """Stop in order and close the store; afterwards only leaving the block is left to do.

        Args:
            timeout: seconds running handlers get to finish; `drain_timeout` when it is None.

        Being cancelled while it waits hurries it: handlers are cancelled at once, outcomes are still stored.
        """
        kernel, task = self._running()
        if not self._drained:
            self._drained = True
            kernel.stop(self._drain_timeout if timeout is None else timeout)
        await self._ended(kernel, task)
        if isinstance(task.ending, Raised):
            raise RuntimeStateError("the runtime's kernel failed; the store is closed") from task.ending.error
        return kernel.report

    async def _ended(self, kernel: Kernel, task: Detached[None]) -> None:
        """Wait for the kernel's end, then close the store, however often the wait is cancelled; raise that at last.

        A shield holds against the cancellations of anyio and trio, not against `Task.cancel()` of asyncio.
        """
        cancelled: BaseException | None = None
        closed = False
        while not closed:
            try:
                with anyio.CancelScope(shield=cancelled is not None):
                    await task.wait()
                with anyio.CancelScope(shield=True):
                    await self._store.aclose()
                    await self._clients.aclose()
                closed = True
            except anyio.get_cancelled_exc_class() as error:
                cancelled = cancelled or error
                kernel.hurry()
        if cancelled is not None:
            raise cancelled

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def open(self, key: str, **params: Any) -> SessionRef:
        """Return the session of this key, creating it the first time: get-or-create, also across restarts.

        A program that is killed and run again finds its session, and what it asked is not asked a second time.

        Args:
            key: your name for the session, unique in the store.
            params: the body of a session creation (`agent`, `input`, `environment`, `metadata`, ...). `agent.tools`
                is filled from the handlers when absent; `environment` defaults to none. Used the first time only.

        Raises:
            ConfigurationError: the parameters are no creation body.
            ApiError: the server refused the creation.
        """
        if not key:
            raise ConfigurationError("open() needs a key; create() is the form without one")
        return self._ref(await self._opening().open(key, params))

    async def create(self, **params: Any) -> SessionRef:
        """Create a session without a key; see `open` for the parameters and errors."""
        return self._ref(await self._opening().open(None, params))

    async def attach(self, session_id: str, *, pending: Literal["run", "verify"] = "run") -> SessionRef:
        """Follow a session that exists already.

        Args:
            session_id: the session.
            pending: what to think of calls that are pending already: "run" starts them; "verify" treats them as
                interrupted, because another client may have started them.
        """
        return self._ref(await self._opening().attach(session_id, pending=pending))

    async def detach(self, session_id: str) -> None:
        """Stop following a session; it is not followed again at the next start either, until it is attached."""
        kernel, _ = self._running()
        live = kernel.live.get(session_id)
        if live is None:
            return
        kernel.supervisor.stop(session_id)
        changes = {"state": "detached", "updated_at": self.now()}
        await self._store.write(UpdateSession(local_id=live.record.local_id, changes=changes)).committed()
        live.record = msgspec.structs.replace(live.record, **changes)
        live.notify()
        del kernel.live[session_id]

    def wake(self, session_id: str) -> None:
        """Read a session now: something elsewhere says that it moved. Unknown sessions are ignored."""
        kernel, _ = self._running()
        live = kernel.live.get(session_id)
        if live is not None:
            live.mailbox.tell(ReadAgain("wake"))

    def _ref(self, record: SessionRecord) -> SessionRef:
        kernel, _ = self._running()
        if record.session_id is None:
            raise SessionError("the session was never created", session_id=record.local_id)
        return SessionRef(self, kernel.follow(record))

    # --- calls --------------------------------------------------------------------------------------------------------

    async def calls(
        self, *, session_id: str | None = None, states: Sequence[CallState] | None = None, limit: int = 100
    ) -> list[CallRecord]:
        """Return rows of the journal, newest first."""
        await self._store.flush()
        return await self._store.calls(session_id=session_id, states=states, limit=limit)

    async def decide(self, call: str, verdict: Verdict[Any]) -> CallRecord:
        """Decide a call whose outcome is unknown; see `answerback.decisions`.

        Args:
            call: its public id (any unique prefix) or call_id.
            verdict: `Happened(output)`, `Failed(text)`, `NotHappened()` (the handler runs) or `Unknown()`.
        """
        self.check_running()
        await self._store.flush()
        found = await find_call(self._store, call)
        tool = self._handlers.get(found.name)
        return await self._decided(await decide(self._store, found.public_id, verdict, tool=tool))

    async def approve(self, call: str, *, by: str | None = None, reason: str | None = None) -> CallRecord:
        """Say yes to a call that waits for an approval: its handler is started, once; see `answerback.decisions`.

        Args:
            call: its public id (any unique prefix) or call_id.
            by: who said so, for the record.
            reason: why, for the record.
        """
        self.check_running()
        return await self._decided(await approve(self._store, call, by=by, reason=reason))

    async def reject(self, call: str, *, reason: str | None = None, by: str | None = None) -> CallRecord:
        """Say no to a call that waits for an approval: its handler never runs, the model reads `reason`."""
        self.check_running()
        return await self._decided(await reject(self._store, call, reason=reason, by=by))

    async def _decided(self, record: CallRecord) -> CallRecord:
        """Let the session's actor act on a decision that is in the store."""
        kernel, _ = self._running()
        live = kernel.live.get(record.key.session_id)
        if live is not None:
            await live.journal.refresh([record.key])
            job = kernel.runner.jobs.get(record.key)
            if job is not None:
                job.decided.set()
            live.mailbox.tell(ReadAgain("a call was decided"))
        return record

    def status(self) -> RuntimeStatus:
        """Return what is going on, from memory."""
        kernel, _ = self._running()
        return status_of(kernel)

    @property
    def store(self) -> Store:
        """The journal this runtime keeps."""
        return self._store

    # --- for session refs ---------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        return self._clock()

    def check_running(self) -> None:
        """Raise the store's failure, or RuntimeStateError, when nothing can be asked of this runtime any more."""
        kernel, _ = self._running()
        if kernel.failure is not None:
            raise kernel.failure
        if self._drained or kernel.over:
            raise not_running()

    async def read(self, request: Callable[[AgentsApi], Awaitable[ResultT]]) -> ResultT:
        """Perform a GET for a caller, trying again while it fails in passing."""
        return await retried(lambda: request(self._api), rng=self._rng)

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Perform a POST of inputs for a caller, the same bytes under the same key until the answer is definite."""
        await retried(lambda: self._api.post(session_id, body, key=key), rng=self._rng)

    def _running(self) -> tuple[Kernel, Detached[None]]:
        if self._kernel is None or self._task is None:
            raise not_running()
        return self._kernel, self._task

    def _opening(self) -> Opener:
        self.check_running()
        if self._opener is None:
            raise not_running()
        return self._opener


async def _serve(kernel: Kernel, executor: Executor) -> None:
    try:
        async with executor:
            await kernel.serve()
    finally:
        # Also when it failed: whoever waits, for the start or for a turn, must not wait for ever.
        kernel.ended()


def _wall_clock() -> int:
    return time.time_ns() // 1000
