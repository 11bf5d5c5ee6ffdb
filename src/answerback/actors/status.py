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
    queued: int
    """Messages its actor has not looked at yet."""
    reason: str | None = None


class DiscoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How adopting sessions by a filter goes, at a moment."""

    metadata: dict[str, str]
    agent_id: str | None
    scans: int
    """Scans that were answered."""
    adopted: int
    """Sessions this process adopted."""
    failures: int
    """Scans in a row that were not answered; 0 when all is well."""


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime, at a moment. `store.degraded` says why writes wait, if they do."""

    sessions: list[SessionStatus]
    """The sessions that live in this process, and those that ended last."""
    passivated: int
    """Open sessions of the store that are at rest; counted now and then, and carried on in between."""
    streams: int
    """Event streams that are open."""
    discoveries: list[DiscoveryStatus]
    calls: int
    """Calls with a task: queued, running, being verified, held."""
    running: int
    """Handler bodies that were entered and have not ended."""
    store: StoreHealth


def status_of(kernel: Kernel) -> RuntimeStatus:
    """Return what this kernel is doing."""
    return RuntimeStatus(
        sessions=[_session_status(live) for live in kernel.live.values()],
        passivated=kernel.roster.passivated,
        streams=sum(actor.streaming for actor in kernel.supervisor.actors.values()),
        discoveries=[
            DiscoveryStatus(
                metadata=discovery.discover.metadata,
                agent_id=discovery.discover.agent_id,
                scans=discovery.scans,
                adopted=discovery.adopted,
                failures=discovery.failures,
            )
            for discovery in kernel.discoveries
        ],
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
        queued=len(live.mailbox),
        reason=live.record.reason,
    )
