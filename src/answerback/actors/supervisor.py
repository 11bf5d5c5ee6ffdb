"""Start actors, restart them after a crash, set a session aside when it crashes too often.

One for one: a crash concerns one session, its siblings go on. A dropped stream, a 5xx or a timeout is no crash.
Only a store that failed concerns everybody: it is handed up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from answerback.actors.backoff import Backoff, RestartLimit
from answerback.actors.live import LiveSession
from answerback.actors.session import SessionActor
from answerback.actors.shared import Shared
from answerback.errors import StoreError
from answerback.store.base import UpdateSession

logger = logging.getLogger("answerback.supervisor")


class Supervisor:
    """Keeps one actor running for every followed session, and the actors that serve all of them."""

    def __init__(
        self,
        group: TaskGroup,
        shared: Shared,
        *,
        restart_limit: int,
        restart_period: float,
        escalate: Callable[[StoreError], None],
        ended: Callable[[LiveSession], None],
        rng: random.Random,
    ) -> None:
        self._group = group
        self._shared = shared
        self._restart_limit = restart_limit
        self._restart_period = restart_period
        self._escalate = escalate
        self._ended = ended
        self._backoff = Backoff()
        self._rng = rng
        self._watches: dict[str, _Watch] = {}
        self._common: list[anyio.CancelScope] = []
        self.actors: dict[str, SessionActor] = {}

    def __repr__(self) -> str:
        return f"<Supervisor of {len(self.actors)} actors>"

    def start(self, live: LiveSession) -> None:
        """Follow a session from now on; a session that is followed already is left alone.

        Two actors of one session never overlap: a new one waits until one that was stopped has ended.
        """
        before = self._watches.get(live.session_id)
        if before is None or before.stopped:
            watch = self._watches[live.session_id] = _Watch(live)
            self._group.start_soon(self._supervise, watch, before.done if before is not None else None)

    def stop(self, session_id: str) -> None:
        """Stop following a session; its running calls go on and store what comes of them."""
        watch = self._watches.get(session_id)
        if watch is not None:
            watch.scope.cancel()

    def stop_all(self) -> None:
        """Stop following every session."""
        for watch in list(self._watches.values()):
            watch.scope.cancel()

    def keep(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        """Run an actor that serves all sessions, again whenever it crashes, until `stop_common`."""
        scope = anyio.CancelScope()
        self._common.append(scope)
        self._group.start_soon(self._keep, name, body, scope)

    def stop_common(self) -> None:
        """Stop the actors that serve all sessions."""
        for scope in self._common:
            scope.cancel()

    # --- the tasks ----------------------------------------------------------------------------------------------------

    async def _supervise(self, watch: _Watch, before: anyio.Event | None) -> None:
        live = watch.live
        limit = RestartLimit(self._restart_limit, self._restart_period)
        try:
            if before is not None:
                # Also when this one is stopped meanwhile: whoever comes next waits for this one only.
                with anyio.CancelScope(shield=True):
                    await before.wait()
            with watch.scope:
                while await self._run_once(live, limit):
                    live.mailbox.clear()
                    await anyio.sleep(self._backoff.pause(limit.recent, self._rng))
        finally:
            watch.done.set()
            if self._watches.get(live.session_id) is watch:
                del self._watches[live.session_id]
            self._ended(live)
            live.notify()

    async def _run_once(self, live: LiveSession, limit: RestartLimit) -> bool:
        """Run an actor until it ends; return whether it is to be started again."""
        actor = SessionActor(live, self._shared)
        self.actors[live.session_id] = actor
        try:
            await actor.run()
        except (Exception, BaseExceptionGroup) as raised:  # noqa: BLE001 - the supervisor is where every crash ends
            error, cancelled = apart(raised)
            live.crashes += error is not None
            allowed = cancelled is None and limit.crashed(anyio.current_time())
            if error is not None:
                then = "restarting" if allowed else "it was ending" if cancelled else "too often: it is set aside"
                extra = {"session_id": live.session_id, "crashes": live.crashes}
                names = self._crashed(error, "a session's actor", then, extra)
                if names is not None:
                    self._shared.observer.crashed(live.session_id, names)
                if names is not None and not allowed and cancelled is None:
                    await self._quarantine(live, names)
                allowed = allowed and names is not None
            if cancelled is not None:
                raise cancelled from None
            return allowed
        finally:
            self.actors.pop(live.session_id, None)
        return False

    async def _keep(self, name: str, body: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        limit = RestartLimit(self._restart_limit, self._restart_period)
        with scope:
            while True:
                try:
                    await body()
                except (Exception, BaseExceptionGroup) as raised:  # noqa: BLE001 - as above
                    error, cancelled = apart(raised)
                    limit.crashed(anyio.current_time())
                    if error is not None and self._crashed(error, name, "restarting", {}) is None:
                        return
                    if cancelled is not None:
                        raise cancelled from None
                # It serves everybody, so it is never given up: at worst it runs once in a while.
                await anyio.sleep(self._backoff.pause(limit.recent, self._rng))

    def _crashed(self, error: Exception, who: str, then: str, extra: Mapping[str, object]) -> str | None:
        """Log a crash, or hand a store's failure up; return the class names, or None for a store's failure."""
        store_error = next((leaf for leaf in leaves(error) if isinstance(leaf, StoreError)), None)
        if store_error is not None:
            self._escalate(store_error)
            return None
        names = ", ".join(sorted({type(leaf).__name__ for leaf in leaves(error)}))
        # Class names and places only: the text of an exception may carry values.
        logger.error(
            "%s crashed (%s) at %s; %s",
            who,
            names,
            places(error),
            then,
            extra=extra,
        )
        return names

    async def _quarantine(self, live: LiveSession, names: str) -> None:
        """Set a session aside, visibly and across restarts; running handlers store their outcomes all the same."""
        reason = f"its actor crashed {live.crashes} times ({names})"
        changes = {"state": "quarantined", "reason": reason, "updated_at": self._shared.now()}
        statement = UpdateSession(local_id=live.record.local_id, changes=changes)
        try:
            await self._shared.store.write(statement).committed()
        except StoreError as error:
            self._escalate(error)
        live.record = msgspec.structs.replace(live.record, **changes)
        live.close_subscribers()


class _Watch:
    """One session under supervision, from `start` to the end of its last actor."""

    def __init__(self, live: LiveSession) -> None:
        self.live = live
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()

    @property
    def stopped(self) -> bool:
        """Whether it is ending."""
        return self.scope.cancel_called or self.done.is_set()


def apart(error: BaseException) -> tuple[Exception | None, BaseException | None]:
    """Return what is an error and what is not: trio raises an error and the cancellation beside it as one group."""
    if isinstance(error, Exception):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return group.split(Exception)


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions inside (nested) groups, or the exception itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for member in group.exceptions for leaf in leaves(member)]


def places(error: BaseException) -> str:
    """Return file names and lines where the leaves were raised, without any text."""
    spots: list[str] = []
    for leaf in leaves(error):
        trace = leaf.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            spots.append(f"{trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
    return ", ".join(spots) or "an unknown place"
