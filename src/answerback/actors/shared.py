"""What the actors of a runtime have in common."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.calls import CallRunner
from answerback.actors.live import LiveSession
from answerback.actors.settings import ActorSettings
from answerback.model import Observer, Unobserved
from answerback.store.base import Store


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all actors of a runtime share."""

    store: Store
    api: AgentsApi
    runner: CallRunner
    settings: ActorSettings
    post_gate: anyio.CapacityLimiter
    stream_slots: anyio.CapacityLimiter | None
    rng: random.Random
    now: Callable[[], int]
    passivate: Callable[[LiveSession], None]
    """Forgets a session that is quiet, and ends its actor."""
    stop: Callable[[str], None]
    """Ends the actor of a session."""
    observer: Observer = Unobserved()
