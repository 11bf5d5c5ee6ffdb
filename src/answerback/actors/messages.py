"""What a session actor can receive, and what its pure core can ask for. Imports neither anyio nor openai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from answerback.model import CallKey
from answerback.wire.events import Event
from answerback.wire.records import Session

# --- messages ---------------------------------------------------------------------------------------------------


class EventArrived(msgspec.Struct, frozen=True):
    """An event of the session's stream (event lane)."""

    event: Event


class StreamOpened(msgspec.Struct, frozen=True):
    """A stream was (re)opened and is being read; what happened before it must be fetched."""


class StreamSilent(msgspec.Struct, frozen=True):
    """Nothing but comments came for `stream_idle_timeout` seconds."""


class StreamEnded(msgspec.Struct, frozen=True):
    """A stream ended or failed; it is being reopened. `status` is set when the server refused it."""

    status: int | None = None


class Fetched(msgspec.Struct, frozen=True):
    """A retrieve was answered. `sent_at` is the journal's tick when the request left."""

    session: Session
    sent_at: int


class FetchRefused(msgspec.Struct, frozen=True):
    """A retrieve, a stream or a POST was refused for good: 401, 403 or 404."""

    status: int


class CallFinished(msgspec.Struct, frozen=True):
    """A call's task has ended; the journal says how. Content-free on purpose: losing it loses nothing."""

    key: CallKey


class ReadAgain(msgspec.Struct, frozen=True):
    """Read the session: a poll, a `wake`, a webhook, a result that may have been accepted."""

    reason: str


class OutboxChanged(msgspec.Struct, frozen=True):
    """There may be an input to send, or a decision was taken."""


Message: TypeAlias = (
    EventArrived
    | StreamOpened
    | StreamSilent
    | StreamEnded
    | Fetched
    | FetchRefused
    | CallFinished
    | ReadAgain
    | OutboxChanged
)

# --- what a session says is required ----------------------------------------------------------------------------


class Asked(msgspec.Struct, frozen=True):
    """One function call the session waits for."""

    name: str
    arguments: bytes
    arguments_hash: str
    is_async: bool = False


class Reading(msgspec.Struct, frozen=True):
    """A complete list of required function calls at one instant.

    `sent_at` is the journal's tick when the GET was sent, and None for a stream frame: a frame may be old, so what it
    lists counts and what it leaves out says nothing.
    """

    asked: Mapping[CallKey, Asked]
    sent_at: int | None = None


# --- effects of the pure core -----------------------------------------------------------------------------------


class Fetch(msgspec.Struct, frozen=True):
    """Retrieve the session with a request sent from now on."""

    reason: str


class Reconcile(msgspec.Struct, frozen=True):
    """Compare the journal with what the session asks for."""

    reading: Reading


class OutputSeen(msgspec.Struct, frozen=True):
    """The server published an output item for this call."""

    key: CallKey


class ReopenStream(msgspec.Struct, frozen=True):
    """The stream stayed silent over something new: it is dead."""


class Publish(msgspec.Struct, frozen=True):
    """Hand an event to local subscribers."""

    event: Event


class StopFollowing(msgspec.Struct, frozen=True):
    """The session is gone, failed, or not ours to read."""

    state: str
    reason: str
    lasting: bool = True
    """Whether the store keeps it: refused credentials are this process's trouble, not the session's."""


class TurnsChanged(msgspec.Struct, frozen=True):
    """Turns may have ended: match inputs with turns, then tell whoever waits."""


class ReportAction(msgspec.Struct, frozen=True):
    """The session waits for something that is not a function call and that nobody here answers."""

    kind: str


Effect: TypeAlias = (
    Fetch | Reconcile | OutputSeen | ReopenStream | Publish | StopFollowing | TurnsChanged | ReportAction
)
