"""What a runtime is doing, at a moment, from memory."""

from __future__ import annotations

import msgspec

from answerback.actors.kernel import Kernel
from answerback.actors.live import LiveSession
from answerback.model import CallState
from answerback.store.base import StoreHealth


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One followed session, at a moment."""

    session_id: str
    key: str | None
    state: str
    status: str
    open_calls: int
    indeterminate: int
    crashes: int
    other_actions: tuple[str, ...]
    reason: str | None = None


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime, at a moment. `store.degraded` says why writes wait, if they do."""

    sessions: list[SessionStatus]
    calls: int
    """Calls with a task: queued, running, being verified, held."""
    running: int
    """Handler bodies that were entered and have not ended."""
    store: StoreHealth


def status_of(kernel: Kernel) -> RuntimeStatus:
    """Return what this kernel is doing."""
    return RuntimeStatus(
        sessions=[_session_status(live) for live in kernel.live.values()],
        calls=len(kernel.runner.jobs),
        running=kernel.runner.entered,
        store=kernel.store.health,
    )


def _session_status(live: LiveSession) -> SessionStatus:
    entries = live.journal.entries.values()
    return SessionStatus(
        session_id=live.session_id,
        key=live.record.key,
        state=live.record.state,
        status=live.state.status,
        open_calls=len(entries),
        indeterminate=sum(entry.record.state is CallState.INDETERMINATE for entry in entries),
        crashes=live.crashes,
        other_actions=tuple(sorted(live.other_actions)),
        reason=live.record.reason,
    )
