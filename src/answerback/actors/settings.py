"""What a runtime decides for its calls, its actors and itself. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from answerback.errors import ConfigurationError
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

    def __post_init__(self) -> None:
        _number("max_concurrency", self.max_concurrency, least=1)
        _number("cancel_grace", self.cancel_grace)
        _number("hold_deadline", self.hold_deadline)
        _choice("on_interrupted", self.on_interrupted, "tell_model", "hold")
        _choice("unhandled", self.unhandled, "answer", "hold")


class ActorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime decides for all its sessions. Times are seconds."""

    stream_idle_timeout: float = 60.0
    poll_interval: float = 45.0
    passivate_after: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _number(name, getattr(self, name), above=0)


class KernelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Runtime decides. Times are seconds."""

    calls: CallSettings
    actors: ActorSettings
    sync_threads: int = 32
    restart_limit: int = 5
    restart_period: float = 60.0
    submit_grace: float = 5.0
    max_streams: int | None = None

    def __post_init__(self) -> None:
        _number("sync_threads", self.sync_threads, least=1)
        _number("restart_limit", self.restart_limit)
        _number("submit_grace", self.submit_grace)
        if self.max_streams is not None:
            _number("max_streams", self.max_streams)


def read_settings(options: Mapping[str, Any]) -> KernelSettings:
    """Sort a runtime's options by what they are about; those that are no settings are left out.

    Raises:
        ConfigurationError: a value cannot be used; the text names the option.
    """

    def among(kind: type[msgspec.Struct]) -> dict[str, Any]:
        return {name: options[name] for name in kind.__struct_fields__ if name in options}

    calls, actors = CallSettings(**among(CallSettings)), ActorSettings(**among(ActorSettings))
    return KernelSettings(calls=calls, actors=actors, **among(KernelSettings))


def _number(name: str, value: object, *, least: float = 0, above: float | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be a number, not {type(value).__name__}")
    if above is not None and not value > above:
        raise ConfigurationError(f"{name} must be more than {above:g} seconds, not {value}")
    if not value >= least:
        raise ConfigurationError(f"{name} must be at least {least:g}, not {value}")


def _choice(name: str, value: object, *allowed: str) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
