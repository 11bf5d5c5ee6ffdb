"""The seam between the harness and whatever plays the model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from answerback.harness.models.steps import Step


class Result(msgspec.Struct, kw_only=True):
    """What the model knows of one of its calls; `success` is None while an `async` function has not answered."""

    name: str
    call_id: str
    success: bool | None = None
    output: Any = None
    """Parsed when it is JSON text, else as it came."""
    error: str | None = None


class ModelRequest(msgspec.Struct, kw_only=True):
    """One turn, as the model sees it. It is the same object for the whole turn and follows it.

    After a restart the model is asked again for the whole turn; the steps already done are skipped, with `results`
    growing as it did the first time. So a model must yield the same steps for the same results and `memory`.
    """

    session: dict[str, Any]
    """The session object at the start of the turn."""
    turn: int
    """1 for the first turn of the session."""
    input: str
    """The newest user text; a steering message replaces it."""
    results: list[Result] = []
    """The calls of this turn in call order."""
    memory: dict[str, Any] = {}
    """JSON the model wants to find again after a restart; stored with the turn."""


class Model(Protocol):
    """Anything that yields the steps of a turn: `async def model(request): yield say("…")`."""

    def __call__(self, request: ModelRequest, /) -> AsyncIterator[Step]:
        """Yield the steps of one turn; each is performed before the next is asked for."""
        ...
