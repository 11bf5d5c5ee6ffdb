"""One life of a daemon: wait for the store, run what the app says, listen to signals and to the admin, end in order."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from openai import OpenAIError

from answerback.actors.kernel import DrainReport
from answerback.app import App
from answerback.daemon.address import DaemonAddress, host_name, new_token, publish, withdraw
from answerback.daemon.admin.actions import Actions
from answerback.daemon.admin.server import Probes, create_admin, serving
from answerback.daemon.admin.streams import Streams
from answerback.daemon.condition import Condition
from answerback.daemon.exits import DRAINED_LATE, StartError
from answerback.daemon.feed import Feed
from answerback.daemon.heartbeat import Heartbeat
from answerback.daemon.metrics import Metrics
from answerback.daemon.notify import Notifier
from answerback.daemon.open_calls import OpenCalls
from answerback.daemon.reload import importable
from answerback.daemon.signals import listening
from answerback.daemon.tracing import tracer
from answerback.daemon.watchers import Watchers
from answerback.errors import StoreLockedError
from answerback.harness.tcp import listen
from answerback.model import CallKey
from answerback.runtime import Runtime
from answerback.store.base import PutCheckpoint
from answerback.store.reader import lock_owner
from answerback.store.sqlite import SQLiteStore

logger = logging.getLogger("answerback.daemon")

STANDBY_STEP = 0.25
"""Seconds between looks at a lock that somebody else holds."""
ABANDON_AFTER = 0.9
"""Seconds after the second signal when the process ends whatever still runs."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon is told beside its app."""

    spec: str
    """The import string, for people and for a reload."""
    app_dir: Path = Path()
    store: Path | None = None
    """The store file; None takes the app's, and `answerback.db` where it names none."""
    admin_host: str = "127.0.0.1"
    admin_port: int = 0
    drain_timeout: float | None = None
    """Seconds; None takes the app's."""
    standby: bool = False
    with_parent: bool = False
    """Whether to end when the process that started us is gone."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon's life ended."""

    report: DrainReport = DrainReport()
    reload: bool = False
    """Whether the same process is to start anew, with the code as it is now."""


class Daemon:
    """Runs an app until it is told to stop. Must run on asyncio, in the main thread.

    Args:
        app: what to run.
        options: how.
        announce: told once where it listens, as soon as it serves.
    """

    def __init__(self, app: App, options: Options, *, announce: Callable[[DaemonAddress, Path], None]) -> None:
        self._app = app
        self._options = options
        self._announce = announce
        self._store = self._only_store()
        self._stopping = anyio.Event()
        self._signals = 0
        self._reload = False
        self._checking = False
        self._look_again = False
        self._check: asyncio.Task[None] | None = None
        self._runtime: Runtime | None = None
        self._condition: Condition | None = None
        self._address: DaemonAddress | None = None
        self._notifier = Notifier()
        self.serving = False
        """Whether it came so far as to serve."""
        self.hurried = False
        """Whether somebody is waiting for the end of the process."""

    def __repr__(self) -> str:
        state = "draining" if self._stopping.is_set() else "serving" if self.serving else "starting"
        return f"<Daemon {self._options.spec} {state}>"

    @property
    def path(self) -> Path:
        """The store file."""
        return self._store.path

    async def run(self) -> Ended:
        """Serve until told to stop, then drain.

        Raises:
            StoreError: the store is locked or cannot be used.
            StartError: a client cannot be made.
            ConfigurationError: the admin's port is taken.
        """
        listeners: Mapping[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self._terminate,
            signal.SIGINT: self._terminate,
            signal.SIGHUP: self._hang_up,
            signal.SIGUSR1: self._dump,
        }
        with listening(listeners):
            while True:
                if self._options.standby and not await self._until_free():
                    return Ended()
                try:
                    return await self._live()
                except StoreLockedError:
                    # Another one that stood by was faster.
                    if self.serving or not self._options.standby:
                        raise

    # --- a life -------------------------------------------------------------------------------------------------------

    async def _live(self) -> Ended:
        listener = listen(self._options.admin_host, self._options.admin_port)
        calls, feed = OpenCalls(), Feed()
        spans = tracer(self._remember)
        metrics = Metrics(tools=self._app.handlers.names, calls=calls, figures=self._figures)
        observers = [calls, metrics, feed, *([spans] if spans is not None else [])]
        async with AsyncExitStack() as stack:
            stack.callback(listener.close)
            self._runtime = runtime = self._compose(Watchers(observers))
            await stack.enter_async_context(runtime)
            pulse = Heartbeat(self._beat, orphaned=self._terminate if self._options.with_parent else None)
            self._condition = condition = Condition(
                runtime,
                app=self._options.spec,
                path=self.path,
                since=_now(),
                handlers=self._app.handlers,
                calls=calls,
                pulse=pulse,
            )
            actions = Actions(runtime, app=self._app, stop=self._terminate)
            token = new_token()
            admin = create_admin(
                Probes(condition, metrics),
                actions,
                Streams(feed, actions),
                token=token,
                host=self._options.admin_host,
            )
            async with serving(admin, listener) as origin, _beating(pulse), self._reachable(origin, token):
                report = await runtime.serve(discover=self._app.discover, shutdown_trigger=self._stopping.wait)
                # Whoever follows hears the end of it, then its stream ends and holds nothing up.
                feed.close()
        if spans is not None:
            spans.close()
        return Ended(report=report, reload=self._reload)

    def _compose(self, observer: Watchers) -> Runtime:
        changes: dict[str, Any] = {"store": self._store, "observer": observer}
        if self._options.drain_timeout is not None:
            changes["drain_timeout"] = self._options.drain_timeout
        try:
            return self._app.runtime(**changes)
        except OpenAIError:
            raise StartError(
                "there is no API key: set OPENAI_API_KEY, or give the App a client of its own (client=...)"
            ) from None

    def _only_store(self) -> SQLiteStore:
        """Return the store file to serve: the one of the options, else the app's.

        Raises:
            StartError: the app keeps its journal elsewhere.
        """
        if self._options.store is not None:
            return SQLiteStore(self._options.store)
        store = self._app.store
        if isinstance(store, SQLiteStore):
            return store
        if store is None or isinstance(store, (str, os.PathLike)):
            return SQLiteStore("answerback.db" if store is None else store)
        raise StartError(f"a daemon serves a store file, and the app has a {type(store).__name__}: give --db FILE")

    @asynccontextmanager
    async def _reachable(self, origin: str, token: str) -> AsyncGenerator[None]:
        """Be findable for the length of a block."""
        self._address = address = DaemonAddress(
            url=origin,
            token=token,
            pid=os.getpid(),
            host=host_name(),
            since=_now(),
            version=version("answerback"),
            app=self._options.spec,
        )
        await anyio.to_thread.run_sync(publish, self.path, address)
        try:
            self.serving = True
            self._announce(address, self.path)
            logger.info(
                "serving", extra={"app": address.app, "path": str(self.path), "url": origin, "pid": address.pid}
            )
            self._notifier.ready(f"serving {address.app}")
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(withdraw, self.path, address)

    async def _until_free(self) -> bool:
        """Wait for the store's lock; return False when told to stop instead."""
        said: Any = None
        while not self._stopping.is_set():
            owner = await anyio.to_thread.run_sync(lock_owner, self.path)
            if owner is None:
                return True
            if owner != said:
                said = owner
                who = f"host {owner.get('host')} pid {owner.get('pid')} since {owner.get('since')}"
                logger.info("standing by", extra={"path": str(self.path), "owner": who})
                self._notifier.status(f"standing by; the store is in use by {who}")
            with anyio.move_on_after(STANDBY_STEP):
                await self._stopping.wait()
        return False

    # --- what it is told ----------------------------------------------------------------------------------------------

    def _terminate(self) -> None:
        """First: drain. Second: half a second for what runs. Third: exit now."""
        self._signals += 1
        if self._signals == 1:
            self._stop("draining; a second signal hurries")
            if not self._reload:
                self._notifier.stopping("draining")
        elif self._signals == 2:
            self.hurried = True
            logger.warning("hurrying: running handlers are cancelled; a third signal exits at once")
            if self._runtime is not None and self.serving:
                self._runtime.hurry()
            asyncio.get_running_loop().call_later(ABANDON_AFTER, self._leave)
        else:
            self._leave()

    def _stop(self, why: str) -> None:
        logger.info(why)
        if self._condition is not None:
            self._condition.draining = True
        self._stopping.set()

    def _leave(self) -> None:
        """End the process now; what was started and has no result is found by the next one."""
        if self._address is not None:
            withdraw(self.path, self._address)
        sys.stderr.write("answerback: left at once; started calls without a result are decided at the next start\n")
        sys.stderr.flush()
        os._exit(DRAINED_LATE)

    def _hang_up(self) -> None:
        """Start anew with the code as it is now, if that can be imported."""
        if self._stopping.is_set():
            return
        if self._checking:
            # The code changed while it was looked at: what comes of that look is out of date.
            self._look_again = True
            return
        self._checking = True
        # Kept here: the loop itself holds its tasks weakly.
        self._check = asyncio.get_running_loop().create_task(self._check_and_reload(), name="answerback reload")

    async def _check_and_reload(self) -> None:
        self._look_again = True
        reason: str | None = None
        while self._look_again:
            self._look_again = False
            reason = await importable(self._options.spec, self._options.app_dir)
        self._checking = False
        if reason is not None:
            logger.error("not reloaded: the app cannot be imported; going on with the code that runs")
            sys.stderr.write(f"answerback: {reason}\n")
        elif not self._stopping.is_set():
            self._reload = True
            self._notifier.reloading()
            self._stop("reloading: running calls finish on the old code")

    def _dump(self) -> None:
        """Write what is going on as one JSON line on stderr, whatever the log's format is."""
        facts: dict[str, Any] = {"actors": [], "calls": []} if self._condition is None else self._condition.dump()
        line = {"event": "dump", "at": _now(), "pid": os.getpid(), **facts, "tasks": _tasks()}
        sys.stderr.write(json.dumps(line) + "\n")
        sys.stderr.flush()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def _figures(self) -> Any:
        return None if self._condition is None else self._condition.figures()

    def _beat(self) -> None:
        if self._condition is not None and self._notifier.watchdog is not None:
            self._notifier.alive()
            self._notifier.status(self._condition.line())

    def _remember(self, key: CallKey, attempt: int, carrier: Mapping[str, str]) -> None:
        """Keep a trace context beside its call; it rides with the next commit."""
        if self._runtime is not None:
            value = msgspec.json.encode(carrier)
            statement = PutCheckpoint(
                key=key, attempt=attempt, name="answerback.trace", value=value, at=self._runtime.now()
            )
            self._runtime.store.write(statement, lazy=True)


@asynccontextmanager
async def _beating(pulse: Heartbeat) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(pulse.run)
        yield
        group.cancel_scope.cancel()


def _tasks() -> list[dict[str, Any]]:
    """Return the tasks of the loop by name and place."""
    found: list[dict[str, Any]] = []
    for task in asyncio.all_tasks():
        stack = task.get_stack(limit=1)
        place = f"{Path(stack[0].f_code.co_filename).name}:{stack[0].f_lineno}" if stack else None
        found.append({"name": task.get_name(), "at": place})
    return sorted(found, key=lambda one: str(one["name"]))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
