"""What a tool's author says about running it again, and the four answers to "did it happen?"."""

from __future__ import annotations

import math
from typing import Generic, TypeAlias, TypeVar, Union

import msgspec

from answerback.errors import ConfigurationError

R_co = TypeVar("R_co", covariant=True)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a handler that raised is started again, and after which pause (seconds).

    Raises:
        ConfigurationError: for fewer than one attempt, a negative pause, or a factor below one.
    """

    attempts: int = 3
    """Starts in all, the first one included."""
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigurationError(f"Retry(attempts={self.attempts}): the first start counts; give 1 or more.")
        for name, value, least in (
            ("delay", self.delay, 0.0),
            ("factor", self.factor, 1.0),
            ("max_delay", self.max_delay, 0.0),
        ):
            if not (math.isfinite(value) and value >= least):
                raise ConfigurationError(f"Retry({name}={value}): give a finite number >= {least:g}.")

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt` (1 is the first) failed."""
        try:
            grown = self.delay * self.factor ** max(attempt - 1, 0)
        except OverflowError:
            return self.max_delay
        return min(grown, self.max_delay)


class Happened(msgspec.Struct, Generic[R_co], frozen=True):
    """The effect took place; `output` is what the handler would have returned."""

    output: R_co


class Failed(msgspec.Struct, frozen=True):
    """The effect was tried and failed for good; `error` is one sentence the model may read."""

    error: str


class NotHappened(msgspec.Struct, frozen=True):
    """The effect did not take place, and no longer can: the handler may be started again."""


class Unknown(msgspec.Struct, frozen=True):
    """Nobody can tell yet; asked again until the deadline, then the tool's `on_interrupted` decides."""


Verdict: TypeAlias = Union[Happened[R_co], Failed, NotHappened, Unknown]  # noqa: UP007 - generic at run time too
"""What a verify hook returns, and what a person decides."""
