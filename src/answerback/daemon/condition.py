"""What a daemon says of itself: to probes, to metrics, to whoever asks how it is. Counts and names, never values."""

from __future__ import annotations

import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio

from answerback.actors.status import RuntimeStatus
from answerback.daemon.heartbeat import Heartbeat
from answerback.daemon.metrics import Figures
from answerback.daemon.open_calls import OpenCalls
from answerback.errors import RuntimeStateError, StoreError
from answerback.handlers.registry import Handlers
from answerback.runtime import Runtime
from answerback.store.base import UpdateSession

PROBE_PATIENCE = 1.0
"""Seconds a write may take for the store to count as writable."""


class Condition:
    """The state of a running daemon.

    Attributes:
        draining: whether it was told to end.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        app: str,
        path: Path,
        since: str,
        handlers: Handlers,
        calls: OpenCalls,
        pulse: Heartbeat,
    ) -> None:
        self.draining = False
        self._runtime = runtime
        self._app = app
        self._path = path
        self._since = since
        self._handlers = handlers
        self._calls = calls
        self._pulse = pulse

    def __repr__(self) -> str:
        return f"<Condition {'draining' if self.draining else 'running'}>"

    @property
    def alive(self) -> bool:
        """Whether the event loop turns; nothing outside this process counts."""
        return self._pulse.well

    async def unready(self) -> list[str]:
        """Return why nothing should be sent here, in words; empty when all is well."""
        if self.draining:
            return ["draining"]
        status = self._status()
        if status is None:
            return ["the runtime has ended"]
        reasons = [] if await self._writable() else [f"the store cannot be written: {status.store.degraded or 'slow'}"]
        return reasons + ([] if self._sources(status) else ["nothing tells of new calls"])

    def figures(self) -> Figures | None:
        """Return the numbers of this moment, or None when nothing runs."""
        status = self._status()
        if status is None:
            return None
        return Figures(
            followed=[one.session_id for one in status.sessions],
            sessions=_sessions(status),
            mailbox_depth=sum(one.queued for one in status.sessions),
            store=status.store,
            loop_lag=self._pulse.lag,
        )

    def health(self) -> dict[str, Any]:
        """Return everything worth knowing at a glance."""
        status = self._status()
        facts: dict[str, Any] = {
            "status": "draining" if self.draining else "running" if status is not None else "ended",
            "version": version("answerback"),
            "pid": os.getpid(),
            "since": self._since,
            "app": self._app,
            "tools": [{"name": tool.name, "effects": tool.effects} for tool in self._handlers],
            "loop_lag": round(self._pulse.lag, 4),
            "store": {"path": str(self._path), "incarnation": None, "degraded": None, "queued": 0, "commits": 0},
            "sessions": {},
            "calls": {"running": 0, "open": dict(self._calls.by_state())},
            "oldest_call_age": {state: round(age, 3) for state, age in self._calls.oldest().items()},
            "streams": 0,
            "wake_sources": [],
        }
        if status is None:
            return facts
        facts["store"] |= {
            "incarnation": self._runtime.store.info.incarnation,
            "degraded": status.store.degraded,
            "queued": status.store.queued,
            "commits": status.store.commits,
        }
        facts["sessions"] = dict(_sessions(status))
        facts["calls"]["running"] = status.running
        facts["streams"] = status.streams
        facts["wake_sources"] = self._sources(status)
        return facts

    def dump(self) -> dict[str, Any]:
        """Return actors and open calls one by one, for somebody who looks for what is stuck."""
        status = self._status()
        actors = (
            []
            if status is None
            else [
                {
                    "session_id": one.session_id,
                    "state": one.state,
                    "status": one.status,
                    "open_calls": one.open_calls,
                    "indeterminate": one.indeterminate,
                    "queued": one.queued,
                    "crashes": one.crashes,
                }
                for one in status.sessions
            ]
        )
        return {"actors": actors, "calls": self._calls.facts()}

    def line(self) -> str:
        """Return one line for a service manager."""
        states = self._calls.by_state()
        return f"{'draining' if self.draining else 'serving'} {self._app}, {sum(states.values())} open calls"

    def _status(self) -> RuntimeStatus | None:
        try:
            # Both: at the very end the store is closed and the runtime can still tell what it did.
            _ = self._runtime.store.info
            return self._runtime.status()
        except RuntimeStateError:
            return None

    def _sources(self, status: RuntimeStatus) -> list[str]:
        """Return what may tell us of new calls: a poll always, a stream and a discovery while they work."""
        discovering = any(one.failures == 0 for one in status.discoveries)
        return ["poll"] + ["stream"] * bool(status.streams) + ["discovery"] * discovering

    async def _writable(self) -> bool:
        """Whether the store takes a write: one that changes no row, through the same queue as every other."""
        if self._runtime.store.health.degraded is not None:
            return False
        with anyio.move_on_after(PROBE_PATIENCE):
            try:
                await self._runtime.store.write(UpdateSession(local_id="", changes={"updated_at": 0})).committed()
            except StoreError:
                return False
            return True
        return False


def _sessions(status: RuntimeStatus) -> Counter[str]:
    """Count sessions by what an operator calls them: the server's status, or ours where it is set aside."""
    counts = Counter((one.status or "unread") if one.state == "open" else one.state for one in status.sessions)
    counts["passivated"] = status.passivated
    return counts
