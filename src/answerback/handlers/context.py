"""What a handler may know of its call and do to it, and log records that carry the call's ids."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, NoReturn

import anyio.from_thread
import anyio.lowlevel
from typing_extensions import TypeVar

from answerback.errors import RuntimeStateError
from answerback.handlers.encoding import json_text
from answerback.model import CallJournal, CallKey, SessionPowers

DepsT_co = TypeVar("DepsT_co", covariant=True, default=Any)

_CURRENT: ContextVar[ToolContext[Any]] = ContextVar("answerback_tool_context")


class ToolContext(Generic[DepsT_co]):
    """One attempt of one call, as its handler sees it. Found by annotation, hidden from the schema.

    Attributes:
        name: the tool's name.
        attempt: 1 for the first start.
        deadline: when the handler's time is over (aware, UTC), or None.
        caller: which program called; None means "direct or program, unknown", because hosted calls carry no caller.
        deps: what the application gave the runtime for its handlers.
        checkpoints: what earlier attempts of this call left with `checkpoint`, by name.
    """

    __slots__ = (
        "_journal",
        "_loop_thread",
        "_powers",
        "_token",
        "attempt",
        "caller",
        "checkpoints",
        "deadline",
        "deps",
        "key",
        "name",
    )

    key: CallKey
    name: str
    attempt: int
    deadline: datetime | None
    caller: str | None
    deps: DepsT_co
    checkpoints: Mapping[str, Any]

    def __init__(
        self,
        key: CallKey,
        *,
        name: str,
        journal: CallJournal,
        powers: SessionPowers,
        attempt: int = 1,
        deadline: datetime | None = None,
        caller: str | None = None,
        deps: DepsT_co = None,  # type: ignore[assignment] # without deps the parameter is Any
        checkpoints: Mapping[str, Any] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "key", key)
        put(self, "name", name)
        put(self, "attempt", attempt)
        put(self, "deadline", deadline)
        put(self, "caller", caller)
        put(self, "deps", deps)
        put(self, "checkpoints", MappingProxyType(dict(checkpoints or {})))
        put(self, "_journal", journal)
        put(self, "_powers", powers)
        put(self, "_loop_thread", threading.get_ident())
        put(self, "_token", _current_token())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A ToolContext is read-only; {name!r} cannot be set.")

    def __repr__(self) -> str:
        return f"<ToolContext {self.name} {self.key} attempt {self.attempt}>"

    @property
    def session_id(self) -> str:
        """The session the call belongs to."""
        return self.key.session_id

    @property
    def turn_id(self) -> str:
        """The turn that asked for it."""
        return self.key.turn_id

    @property
    def call_id(self) -> str:
        """The call's id, unique within its turn only."""
        return self.key.call_id

    @property
    def idempotency_key(self) -> str:
        """64 hex digits to pass to a provider: the same for every attempt, also after a restart."""
        return self.key.digest

    def progress(self, message: str) -> None:
        """Tell local subscribers how the call is going; nothing is stored or sent. Works from any thread.

        A thread that outlived its event loop has nobody left to tell, so its message goes nowhere.
        """
        if threading.get_ident() == self._loop_thread:
            self._powers.progress(self.key, message)
            return
        try:
            anyio.from_thread.run_sync(self._powers.progress, self.key, message, token=self._token)
        except anyio.RunFinishedError:
            logging.getLogger(__name__).debug("progress came after the event loop had ended", extra=call_ids(self))

    async def checkpoint(self, name: str, value: object) -> None:
        """Put a named JSON value on stable storage; later attempts find it in `checkpoints`.

        In a sync handler: `anyio.from_thread.run(ctx.checkpoint, name, value)`.

        Raises:
            OutputError: when `value` has no JSON form.
        """
        await self._journal.checkpoint(self.key, self.attempt, name, json_text(value).encode())

    @staticmethod
    def current() -> ToolContext[Any]:
        """Return the context of the call that is running here.

        Raises:
            RuntimeStateError: outside a handler.
        """
        context = _CURRENT.get(None)
        if context is None:
            raise RuntimeStateError("ToolContext.current() works inside a handler only; no call is running here.")
        return context

    # Declared for the type checkers; set in __init__ past the read-only guard.
    _journal: CallJournal
    _powers: SessionPowers
    _loop_thread: int
    _token: anyio.lowlevel.EventLoopToken | None


def enter(context: ToolContext[Any]) -> None:
    """Make `context` the current one; called inside the copied context variables of one attempt."""
    _CURRENT.set(context)


def call_ids(context: ToolContext[Any]) -> dict[str, str]:
    """Return the ids a log record about this call carries in `extra`."""
    return {
        "session_id": context.session_id,
        "turn_id": context.turn_id,
        "call_id": context.call_id,
        "tool": context.name,
    }


class CallLogFilter(logging.Filter):
    """Add session_id, turn_id, call_id and tool to records made inside a handler; empty strings elsewhere.

    Put it on a logging handler (`handler.addFilter(CallLogFilter())`): filters of a logger see only its own records.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Fill in what the record does not already carry; lets every record pass."""
        context = _CURRENT.get(None)
        known = call_ids(context) if context is not None else dict.fromkeys(_RECORD_FIELDS, "")
        for name, value in known.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


_RECORD_FIELDS = ("session_id", "turn_id", "call_id", "tool")


def _current_token() -> anyio.lowlevel.EventLoopToken | None:
    try:
        return anyio.lowlevel.current_token()
    except anyio.NoEventLoopError:
        return None
