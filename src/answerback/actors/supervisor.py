"""Start actors, restart them after a crash, set a session aside when it crashes too often.

One for one: a crash concerns one session, its siblings go on. A dropped stream, a 5xx or a timeout is no crash.
Only a store that failed concerns everybody: it is handed up.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import cast

import anyio
import msgspec
from anyio.abc import TaskGroup

from answerback.actors.backoff import Backoff, RestartLimit
from answerback.actors.live import LiveSession
from answerback.actors.session import SessionActor, Shared
from answerback.errors import StoreError
from answerback.store.base import UpdateSession

logger = logging.getLogger("answerback.supervisor")


class Supervisor:
    """Keeps one actor running for every followed session."""

    def __init__(
        self,
        group: TaskGroup,
        shared: Shared,
        *,
        restart_limit: int,
        restart_period: float,
        escalate: Callable[[StoreError], None],
        rng: random.Random,
    ) -> None:
        self._group = group
        self._shared = shared
        self._restart_limit = restart_limit
        self._restart_period = restart_period
        self._escalate = escalate
        self._backoff = Backoff()
        self._rng = rng
        self._scopes: dict[str, anyio.CancelScope] = {}
        self.actors: dict[str, SessionActor] = {}

    def __repr__(self) -> str:
        return f"<Supervisor of {len(self.actors)} actors>"

    def start(self, live: LiveSession) -> None:
        """Follow a session from now on; a session that is followed already is left alone."""
        if live.session_id not in self._scopes:
            self._scopes[live.session_id] = anyio.CancelScope()
            self._group.start_soon(self._supervise, live, self._scopes[live.session_id])

    def stop(self, session_id: str) -> None:
        """Stop following a session; its running calls go on and store what comes of them."""
        scope = self._scopes.get(session_id)
        if scope is not None:
            scope.cancel()

    def stop_all(self) -> None:
        """Stop following every session."""
        for scope in list(self._scopes.values()):
            scope.cancel()

    async def _supervise(self, live: LiveSession, scope: anyio.CancelScope) -> None:
        limit = RestartLimit(self._restart_limit, self._restart_period)
        try:
            with scope:
                while await self._run_once(live, limit):
                    live.mailbox.clear()
                    await anyio.sleep(self._backoff.pause(limit.recent, self._rng))
        finally:
            self.actors.pop(live.session_id, None)
            self._scopes.pop(live.session_id, None)
            live.notify()

    async def _run_once(self, live: LiveSession, limit: RestartLimit) -> bool:
        """Run an actor until it ends; return whether it is to be started again."""
        actor = SessionActor(live, self._shared)
        self.actors[live.session_id] = actor
        try:
            await actor.run()
        except Exception as error:  # noqa: BLE001 - the supervisor is where every crash of an actor ends
            live.crashes += 1
            names = ", ".join(sorted({type(leaf).__name__ for leaf in leaves(error)}))
            store_error = next((leaf for leaf in leaves(error) if isinstance(leaf, StoreError)), None)
            if store_error is not None:
                self._escalate(store_error)
                return False
            allowed = limit.crashed(anyio.current_time())
            # Class names and places only: the text of an exception may carry values.
            logger.error(  # noqa: TRY400
                "a session actor crashed (%s) at %s; %s",
                names,
                places(error),
                "restarting" if allowed else "too often: the session is set aside",
                extra={"session_id": live.session_id, "crashes": live.crashes},
            )
            if not allowed:
                await self._quarantine(live, names)
            return allowed
        return False

    async def _quarantine(self, live: LiveSession, names: str) -> None:
        """Set a session aside, visibly and across restarts; running handlers store their outcomes all the same."""
        reason = f"its actor crashed {live.crashes} times ({names})"
        changes = {"state": "quarantined", "reason": reason, "updated_at": self._shared.now()}
        statement = UpdateSession(local_id=live.record.local_id, changes=changes)
        await self._shared.store.write(statement).committed()
        live.record = msgspec.structs.replace(live.record, **changes)
        live.close_subscribers()


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
