"""What a runtime decides for its calls, its actors and itself. Times are seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from answerback.model import OnInterrupted


class CallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime decides for all its calls. Times are seconds."""

    max_concurrency: int = 100
    cancel_grace: float = 2.0
    hold_deadline: float = 600.0
    hook_timeout: float = 60.0
    """What one question to a verify hook may take before it counts as Unknown."""
    on_interrupted: OnInterrupted = "tell_model"
    unhandled: Literal["answer", "hold"] = "answer"


class ActorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime decides for all its sessions. Times are seconds."""

    stream_idle_timeout: float = 60.0
    poll_interval: float = 45.0


class KernelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Runtime decides. Times are seconds."""

    calls: CallSettings
    actors: ActorSettings
    sync_threads: int = 32
    restart_limit: int = 5
    restart_period: float = 60.0
    submit_grace: float = 5.0
    max_streams: int | None = None
