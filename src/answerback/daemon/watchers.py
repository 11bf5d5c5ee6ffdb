"""The observers of a daemon as one: each is told, and what one of them raises stops neither the others nor a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from answerback.model import CallKey, CallRecord, Observer

logger = logging.getLogger("answerback.daemon.watchers")


class Watchers:
    """Hands on everything it is told."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def __repr__(self) -> str:
        return f"<Watchers {len(self._observers)}>"

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Hand on a move."""
        self._each(lambda one: one.moved(before, after))

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        """Hand on an entry, in the caller's context variables."""
        self._each(lambda one: one.entered(key, name, attempt, checkpoints))

    def left(self, key: CallKey, attempt: int, ending: str) -> None:
        """Hand on an ending."""
        self._each(lambda one: one.left(key, attempt, ending))

    def repeated(self, key: CallKey, source: str) -> None:
        """Hand on a repetition."""
        self._each(lambda one: one.repeated(key, source))

    def resent(self, key: CallKey, reason: str) -> None:
        """Hand on a resend."""
        self._each(lambda one: one.resent(key, reason))

    def crashed(self, session_id: str, reason: str) -> None:
        """Hand on a crash."""
        self._each(lambda one: one.crashed(session_id, reason))

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        """Hand on an event."""
        self._each(lambda one: one.frame(session_id, kind, turn_id, over=over))

    def _each(self, tell: Callable[[Observer], None]) -> None:
        for one in self._observers:
            try:
                tell(one)
            except Exception as error:  # noqa: BLE001 - whoever counts must not stop what is counted
                logger.error("%r failed: %s", one, type(error).__name__)  # noqa: TRY400 - its text may carry values
