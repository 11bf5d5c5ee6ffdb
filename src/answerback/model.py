"""The frozen records every layer shares. Imports nothing of ours but `errors`.

Times are integers: microseconds since the epoch, UTC. Bytes are exact: what is stored is what is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

Effects: TypeAlias = Literal["read", "idempotent", "once"]
"""What running a handler again would do: nothing new, the same thing under the same key, or a second effect."""

OutcomeKind: TypeAlias = Literal["ok", "failed", "rejected", "not_started", "unknown"]
"""How a call ended. Only `unknown` needs care: the effect may or may not have happened."""

OnInterrupted: TypeAlias = Literal["tell_model", "hold"]
"""What follows a call nobody can tell the outcome of: an honest answer, or waiting for a person (with a deadline)."""

OutputPart: TypeAlias = dict[str, Any]
"""One part of a content-array output: `{"type": "input_text", "text"}` or `{"type": "input_image", "image_url"}`."""


class CallKey(msgspec.Struct, frozen=True, order=True):
    """The identity of a call. `call_id` alone is not one: servers reuse it in later turns."""

    session_id: str
    turn_id: str
    call_id: str

    @property
    def digest(self) -> str:
        """64 hex digits, stable over attempts and restarts.

        It is the `idempotency_key` a handler passes on to its provider, and its prefixes are the public call ids.
        """
        joined = "\x1f".join((self.session_id, self.turn_id, self.call_id))
        return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()

    def __str__(self) -> str:
        return f"{self.session_id}/{self.turn_id}/{self.call_id}"


class CallState(StrEnum):
    """Where a call stands in the journal; the arrows between them are `actors.reconcile`."""

    REQUESTED = "requested"
    WAITING_APPROVAL = "waiting_approval"
    STARTED = "started"
    INDETERMINATE = "indeterminate"
    FINISHED = "finished"
    SUBMITTED = "submitted"
    ACKED = "acked"
    OBSOLETE = "obsolete"
    OBSOLETE_UNKNOWN = "obsolete_unknown"
    SUPERSEDED = "superseded"

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do for the call, unless the server lists it again."""
        return self in _CLOSED


_CLOSED = frozenset({CallState.ACKED, CallState.OBSOLETE, CallState.OBSOLETE_UNKNOWN, CallState.SUPERSEDED})
OPEN_STATES = frozenset(CallState) - _CLOSED

SubmitStatus: TypeAlias = Literal["none", "ambiguous", "accepted"]
"""The last thing known of a POST of this outcome: never sent, sent with no clear answer, answered 202."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a call, before it becomes wire bytes.

    `output` (a string, or content parts) goes with `success`; `error` is the one sentence the model reads otherwise.
    `ref` joins the error text to the local log record that has the details.
    """

    kind: OutcomeKind
    output: str | tuple[OutputPart, ...] | None = None
    error: str | None = None
    ref: str | None = None

    @property
    def success(self) -> bool:
        """Whether the wire says `success: true`."""
        return self.kind == "ok"


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the journal."""

    key: CallKey
    name: str
    arguments: bytes
    """The arguments as the wire had them: JSON text of an object, or of a string that should hold one."""
    arguments_hash: str
    """sha256 of the canonical JSON after one decode, so that a frame and a retrieve may differ in form."""
    state: CallState = CallState.REQUESTED
    effects: Effects = "once"
    handler_version: str = ""
    attempt: int = 0
    """How often the handler was started; attempt n is entered once."""
    token: str | None = None
    """Names the current attempt: an outcome is accepted from its holder only."""
    incarnation: int = 0
    """The incarnation of the store that started it; an older one means its process is gone."""
    crash_count: int = 0
    outcome_kind: OutcomeKind | None = None
    outcome: bytes | None = None
    """The exact bytes of the `tool_result` element; never changed once set."""
    outcome_hash: str | None = None
    substitute: bytes | None = None
    """What is sent instead after the API definitely refused `outcome` (kept in a table of its own)."""
    submit_epoch: int = 0
    submit_status: SubmitStatus = "none"
    is_async: bool = False
    """Declared `async` by the session: its outcome is kept and sent whether or not it is listed as required."""
    deadline: int | None = None
    """When the handler's time is over; set by the first start and kept by later attempts."""
    next_at: int | None = None
    """Not before this: the next attempt (retry), or the next question to a verify hook."""
    hold_until: int | None = None
    """When a held call is answered with what is known; None while nothing is held."""
    observed_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    submitted_at: int | None = None
    closed_at: int | None = None
    reason: str | None = None
    """Why it is where it is, in words for an operator; never contains values."""

    @property
    def public_id(self) -> str:
        """The whole hash; any unique prefix of it names the call in the API and on the command line."""
        return self.key.digest

    @property
    def payload(self) -> bytes | None:
        """The bytes to send: the substitute where there is one, else the outcome."""
        return self.substitute if self.substitute is not None else self.outcome


class TransitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step in the life of a call, written in the same commit as the step; the audit and the timeline."""

    key: CallKey
    seq: int
    at: int
    source: str
    """The state before, or an empty string for the first."""
    target: str
    attempt: int
    incarnation: int
    pid: int
    reason: str | None = None


SessionOrigin: TypeAlias = Literal["opened", "attached"]


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One session this store knows. A row without `session_id` is an intent: its creation was never confirmed."""

    local_id: str
    """Ours, random; also the value of `metadata.answerback_key` on sessions we create."""
    session_id: str | None = None
    key: str | None = None
    """The caller's name for it in `runtime.open(key)`; unique."""
    origin: SessionOrigin = "opened"
    request: bytes | None = None
    """The exact creation body, so that an unconfirmed creation is repeated as it was."""
    pending: Literal["run", "verify"] = "run"
    """Whether calls already pending when it was attached may have been started by another client."""
    state: Literal["open", "failed", "gone", "quarantined", "detached", "paused"] = "open"
    status: str = ""
    """The server's last known status: idle, in_progress, requires_action, failed."""
    last_turn_id: str | None = None
    """The newest root turn known to be over."""
    active: bool = False
    """Whether a turn may be open; a start-up follows such sessions even when no call or input is left."""
    reason: str | None = None
    created_at: int = 0
    updated_at: int = 0


class InputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One input (a user message) in the durable outbox; `key` makes sending it again idempotent."""

    session_id: str
    key: str
    seq: int = 0
    """Order within the store; given by the store."""
    element: bytes = b""
    """The exact bytes of the `events[]` element."""
    state: Literal["queued", "sent", "accepted", "refused", "done"] = "queued"
    """sent: posted with no clear answer yet; accepted: 202; done: its turn is known and over."""
    baseline_turn: str | None = None
    """The newest root turn before it was posted."""
    baseline_open: bool = False
    """Whether that turn was still open, so that the message may have steered it."""
    turn_id: str | None = None
    """The turn it started or steered, once known."""
    reason: str | None = None
    created_at: int = 0
    updated_at: int = 0


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A person's yes or no to one call, bound to the arguments it was asked with."""

    key: CallKey
    digest: str
    """The `arguments_hash` the approval is for: other arguments need another approval."""
    asked_at: int
    decided_at: int | None = None
    verdict: Literal["approved", "rejected"] | None = None
    decided_by: str | None = None
    """Who decided, in the words of whoever passed the decision on."""
    reason: str | None = None
    used_at: int | None = None
    """When the approved call was first started; set in the commit of its START."""


class LateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler returned after its call was already answered. Recorded, never sent."""

    key: CallKey
    attempt: int
    at: int
    kind: OutcomeKind
    element: bytes


class CallJournal(Protocol):
    """What a ToolContext may do to the store, as the handlers' room sees it (it imports no store)."""

    async def checkpoint(self, key: CallKey, attempt: int, name: str, value: bytes) -> None:
        """Put a named fact about a running call on stable storage; returns when it is there."""
        ...


class SessionPowers(Protocol):
    """What a ToolContext may do to its session, as the handlers' room sees it (it imports no actors)."""

    def progress(self, key: CallKey, message: str) -> None:
        """Tell local subscribers how a call is going; nothing is stored or sent."""
        ...


class Observer(Protocol):
    """What somebody who counts or traces is told, at once and in the caller's task: return quickly, never raise.

    Records carry arguments and results; an observer passes on ids, names, states and times only.
    """

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """A call moved in the journal; `before` is None when it was first seen by this process."""
        ...

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        """A handler is about to be entered; called in the context variables it will run in."""
        ...

    def left(self, key: CallKey, attempt: int, ending: str) -> None:
        """An entered handler ended: with the kind of its outcome, or as "retry" or "interrupted"."""
        ...

    def repeated(self, key: CallKey, source: str) -> None:
        """A second result of a call was suppressed, or a second run of one that has its result."""
        ...

    def resent(self, key: CallKey, reason: str) -> None:
        """Stored bytes are sent again."""
        ...

    def crashed(self, session_id: str, reason: str) -> None:
        """A session's actor crashed with exceptions of these classes."""
        ...

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        """An event came, deltas while somebody listens; `over` says that it ends its turn."""
        ...


class Unobserved:
    """An observer of nothing: what a runtime has when nobody watches."""

    def moved(self, before: CallRecord | None, after: CallRecord) -> None:
        """Ignore a move."""

    def entered(self, key: CallKey, name: str, attempt: int, checkpoints: Mapping[str, Any]) -> None:
        """Ignore an entry."""

    def left(self, key: CallKey, attempt: int, ending: str) -> None:
        """Ignore an ending."""

    def repeated(self, key: CallKey, source: str) -> None:
        """Ignore a repetition."""

    def resent(self, key: CallKey, reason: str) -> None:
        """Ignore a resend."""

    def crashed(self, session_id: str, reason: str) -> None:
        """Ignore a crash."""

    def frame(self, session_id: str, kind: str, turn_id: str | None, *, over: bool) -> None:
        """Ignore an event."""


JSONObject: TypeAlias = Mapping[str, Any]
JSONArray: TypeAlias = Sequence[Any]
