"""Runtime: the composition root. It owns the store, the HTTP pools and the kernel, and hands out session refs."""

from __future__ import annotations

import contextvars
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from answerback.actors.api import AgentsApi, OpenAIAgentsApi, retried
from answerback.actors.clients import Clients
from answerback.actors.kernel import Kernel
from answerback.actors.lifetime import Lifetime, not_running
from answerback.actors.live import LiveSession
from answerback.actors.opening import Opener
from answerback.actors.serving import Serving
from answerback.actors.settings import ActorSettings, CallSettings, KernelSettings
from answerback.actors.status import RuntimeStatus, status_of
from answerback.decisions import approve, decide, reject
from answerback.errors import ConfigurationError, DecisionError, SessionError
from answerback.handlers.execute import Executor
from answerback.handlers.policy import Verdict
from answerback.handlers.registry import Handlers
from answerback.model import CallRecord, CallState, Observer, OnInterrupted, SessionRecord
from answerback.names import find_call
from answerback.sessions import SessionRef
from answerback.store.base import Store
from answerback.wire import inputs

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ResultT = TypeVar("ResultT")


class Runtime(Serving):
    """Answers the function calls of the sessions it follows.

    It follows the sessions of its store that have something open, and those it is given by `open`, `create` and
    `attach`; it adopts nothing by itself. Use it as an async context manager, on asyncio or trio. Leaving the block
    stops in order: no new calls, running handlers finish (`drain_timeout`), outcomes are sent, the store is closed.

    Args:
        client: an official `AsyncOpenAI`, used unchanged and not closed here.
        handlers: the functions to answer.
        store: where the journal lives; opened and closed here.
        max_concurrency: handlers that may run at once; further calls wait in order of arrival.
        sync_threads: threads for handlers that are plain functions.
        stream_idle_timeout: seconds of silence on a stream after which the session is read.
        poll_interval: seconds between slow reads of every followed session, and between looks after those at rest.
        drain_timeout: seconds running handlers get to finish when the block is left.
        submit_grace: seconds their outcomes then get to be sent.
        cancel_grace: seconds a cancelled handler gets before it is abandoned.
        hold_deadline: seconds an undecided call waits for its verify hook or a person before it is answered.
        restart_limit: crashes of one session's actor within 60 seconds before the session is set aside.
        passivate_after: seconds of idleness, with nothing open and nobody waiting, after which a session is passivated
            and holds no stream, no task and no memory until a message, a wait, a wake or a poll needs it.
        max_streams: live event streams; further sessions are polled, and 0 polls them all. Default: 900 in a pool
            of their own, 20 when the client has a custom http client.
        stream_client: an official client for the streams alone.
        close_client: closes `client` when the block is left, for one that nobody else holds.
        agent: the `agent` of sessions that `open` and `create` are given none for.
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
        passivate_after: float = 60.0,
        max_streams: int | None = None,
        stream_client: AsyncOpenAI | None = None,
        close_client: bool = False,
        agent: Mapping[str, Any] | None = None,
        unhandled: Literal["answer", "hold"] = "answer",
        on_interrupted: OnInterrupted = "tell_model",
        deps: Any = None,
        observer: Observer | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._handlers = handlers
        self._clients = Clients(client, stream_client, max_streams=max_streams, close_client=close_client)
        self._settings = KernelSettings(
            calls=CallSettings(
                max_concurrency=max_concurrency,
                cancel_grace=cancel_grace,
                hold_deadline=hold_deadline,
                on_interrupted=on_interrupted,
                unhandled=unhandled,
            ),
            actors=ActorSettings(
                stream_idle_timeout=stream_idle_timeout, poll_interval=poll_interval, passivate_after=passivate_after
            ),
            sync_threads=sync_threads,
            restart_limit=restart_limit,
            submit_grace=submit_grace,
            max_streams=self._clients.max_streams,
        )
        self._drain_timeout = drain_timeout
        self._rng = rng or random.Random()
        self._clock = clock or _wall_clock
        self._deps = deps
        self._observer = observer
        self._agent = agent
        self._api: AgentsApi = OpenAIAgentsApi(self._clients.requests, self._clients.streams)
        self._opener: Opener | None = None

    def __repr__(self) -> str:
        state = "running" if self._life is not None and not self._left else "not running"
        return f"<Runtime {state}, {len(self._handlers)} tools, {self._store!r}>"

    async def _open_store(self) -> None:
        await self._store.open()

    def _compose(self) -> Lifetime:
        executor = Executor(
            threads=self._settings.sync_threads,
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
        self._opener = Opener(
            store=self._store,
            api=self._api,
            handlers=self._handlers,
            rng=self._rng,
            now=self.now,
            agent=self._agent,
        )
        return Lifetime(kernel, executor, store=self._store, clients=self._clients, patience=self._drain_timeout)

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
        self.check_running()
        await self._kernel.roster.put_aside(session_id, "detached", None)

    async def pause(self, session_id: str) -> None:
        """Take no new calls of a session and send nothing to it until `resume`, also across restarts.

        Handlers that run go on and store what comes of them; messages are queued; whoever waits goes on waiting.

        Raises:
            SessionError: this store does not follow the session.
        """
        self.check_running()
        if not await self._kernel.pause(session_id):
            raise SessionError(f"session {session_id} is not followed here; attach() it first", session_id=session_id)

    async def resume(self, session_id: str) -> SessionRef:
        """Go on with a session that was paused or set aside; one that is followed is left alone.

        Raises:
            SessionError: the store does not know the session, or it is gone, failed or detached.
        """
        self.check_running()
        if not await self._kernel.roster.bring_back(session_id):
            raise SessionError(
                f"session {session_id} is neither paused nor set aside here; attach() follows it", session_id=session_id
            )
        return SessionRef(self, session_id)

    def wake(self, session_id: str) -> None:
        """Read a session now: something elsewhere says that it moved. Unknown sessions are ignored."""
        self._kernel.wake(session_id, "wake")

    def _ref(self, record: SessionRecord) -> SessionRef:
        if record.session_id is None:
            raise SessionError("the session was never created", session_id=record.local_id)
        self._kernel.follow(record)
        return SessionRef(self, record.session_id)

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
        await self._kernel.decided(record.key)
        return record

    async def resend(self, call: str) -> CallRecord:
        """Send the stored result of a call once more: the same bytes, the same key; no handler runs.

        The server takes an identical repeat as such, so this is safe whatever became of the first one.

        Args:
            call: its public id (any unique prefix) or call_id.

        Raises:
            UnknownCallError: no call, or several, have this name.
            DecisionError: no result is stored.
            ApiError: the server definitely refused it.
        """
        self.check_running()
        await self._store.flush()
        record = await find_call(self._store, call)
        if record.payload is None:
            raise DecisionError(f"call {record.public_id[:12]} is {record.state.value}: there is no result to send")
        key = record.key
        result_key = inputs.results_key([(key.session_id, key.turn_id, key.call_id, record.submit_epoch)])
        await self.post(key.session_id, inputs.body([record.payload]), key=result_key)
        self._kernel.wake(key.session_id, "a result was sent again")
        return record

    def status(self) -> RuntimeStatus:
        """Return what is going on, from memory."""
        return status_of(self._kernel)

    @property
    def store(self) -> Store:
        """The journal this runtime keeps."""
        return self._store

    # --- for session refs ---------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        return self._clock()

    def peek(self, session_id: str) -> LiveSession | None:
        """Return a session that lives in this process, or None: it is at rest, or ended long ago."""
        return None if self._life is None else self._life.kernel.live.get(session_id)

    async def awake(self, session_id: str) -> LiveSession:
        """Return a session, bringing it back if it was passivated.

        Raises:
            SessionError: the store does not know it.
        """
        self.check_running()
        live = await self._kernel.roster.awake(session_id)
        if live is None:
            raise SessionError(f"this store does not know session {session_id}; attach() it", session_id=session_id)
        return live

    async def read(self, request: Callable[[AgentsApi], Awaitable[ResultT]]) -> ResultT:
        """Perform a GET for a caller, trying again while it fails in passing."""
        return await retried(lambda: request(self._api), rng=self._rng)

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Perform a POST of inputs for a caller, the same bytes under the same key until the answer is definite."""
        await retried(lambda: self._api.post(session_id, body, key=key), rng=self._rng)

    def _opening(self) -> Opener:
        self.check_running()
        if self._opener is None:
            raise not_running()
        return self._opener


def _wall_clock() -> int:
    return time.time_ns() // 1000
