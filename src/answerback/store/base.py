"""The Store protocol: a journal of calls behind one ordered, group-committing writer.

The contract every store keeps, and `store.conformance` checks:

- `write` is synchronous: it queues one transaction and returns at once. Transactions are applied in the order of the
  `write` calls, whichever tasks made them, so a START queued after its observation can never overtake it.
- A transaction is all or nothing, and is on stable storage when its `Receipt` says so.
- A compare-and-set that does not match is not an error: it is a 0 in the receipt, and the transaction's other
  statements still apply. Nothing may be concluded from a write whose count was not read.
- A lazy write does not wake the writer. It rides with the next commit, or is flushed when the writer is idle for
  `LAZY_DELAY` seconds, and by `flush` and `aclose`.
- A cancelled waiter keeps its write. The writer itself is never cancelled, only closed.
- Trouble that may pass (a full disk, a lock held by another process) makes the store `degraded`: writes wait and are
  retried, nothing fails. Only corruption, a second I/O error in a row or closing fails a receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from answerback.model import (
    ApprovalRecord,
    CallKey,
    CallRecord,
    CallState,
    InputRecord,
    LateRecord,
    SessionOrigin,
    SessionRecord,
    TransitionRecord,
)

LAZY_DELAY = 0.05
"""Seconds a lazy write may wait for company before it is committed by itself."""


class InsertCall(msgspec.Struct, frozen=True):
    """Observe a call (T0). Count 1: inserted. Count 0: the key was there already and nothing was changed."""

    record: CallRecord


class UpdateCall(msgspec.Struct, frozen=True, kw_only=True):
    """Move one call by compare-and-set, and write the transition row in the same commit.

    It applies (count 1) when the row exists, its state is in `sources`, and its token and attempt equal theirs where
    those are given. `changes` names columns of CallRecord (never key, state,
    outcome_hash: the store computes that from `outcome`). An `outcome` already stored is never overwritten: a row
    that has one does not match an update that brings one.
    """

    key: CallKey
    sources: tuple[CallState, ...]
    target: CallState
    at: int
    changes: dict[str, Any] = {}
    token: str | None = None
    attempt: int | None = None
    reason: str | None = None


class PutSubstitute(msgspec.Struct, frozen=True, kw_only=True):
    """Keep what is sent instead of a refused outcome. Count 0 when the call already has one: it never changes.

    Also bumps `submit_epoch` and resets `submit_status` of the call in the same commit, since other bytes need
    another key.
    """

    key: CallKey
    element: bytes
    reason: str
    at: int


class PutLate(msgspec.Struct, frozen=True):
    """Record a late return. Count is always 1."""

    record: LateRecord


class PutCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Keep a named fact about a running call; the same name overwrites. Count is always 1."""

    key: CallKey
    attempt: int
    name: str
    value: bytes
    at: int


class PutApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for an approval of a call with these arguments. Count 0 when it was asked before; nothing is changed then."""

    key: CallKey
    digest: str
    at: int


class DecideApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Say yes or no. Count 0 when nothing was asked, or it was decided before: a decision never changes."""

    key: CallKey
    verdict: Literal["approved", "rejected"]
    at: int
    by: str | None = None
    reason: str | None = None


class UseApproval(msgspec.Struct, frozen=True, kw_only=True):
    """Claim the approval of a call for its start, in the transaction of the START.

    Count 1 when it was approved with this digest; the first use is dated. Later attempts of the same call use it too.
    """

    key: CallKey
    digest: str
    at: int


class PutSession(msgspec.Struct, frozen=True):
    """Insert a session row. Count 0 when its local_id, key or session_id is taken; nothing is changed then."""

    record: SessionRecord


class UpdateSession(msgspec.Struct, frozen=True, kw_only=True):
    """Change columns of one session row by its local_id. Count 0 when there is none."""

    local_id: str
    changes: dict[str, Any]


class PutInput(msgspec.Struct, frozen=True):
    """Queue an input. Count 0 when (session_id, key) is there already; nothing is changed then."""

    record: InputRecord


class UpdateInput(msgspec.Struct, frozen=True, kw_only=True):
    """Change columns of one input, if its state is in `sources` (any, when empty)."""

    session_id: str
    key: str
    changes: dict[str, Any]
    sources: tuple[str, ...] = ()


Write: TypeAlias = (
    InsertCall
    | UpdateCall
    | PutSubstitute
    | PutLate
    | PutCheckpoint
    | PutApproval
    | DecideApproval
    | UseApproval
    | PutSession
    | UpdateSession
    | PutInput
    | UpdateInput
)


class Receipt(Protocol):
    """The answer to one `write`: one count per statement, once the transaction is on stable storage."""

    @property
    def done(self) -> bool:
        """Whether the transaction is committed (or has failed)."""
        ...

    async def committed(self) -> Sequence[int]:
        """Wait for stable storage; return the counts in the order of the statements.

        Waiting makes a lazy write urgent. A cancelled wait leaves the write queued.

        Raises:
            StoreError: the transaction is known not to be on stable storage and will not be.
        """
        ...


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an open store knows about itself."""

    store_id: str
    """Random, made with the file; a restored backup keeps it."""
    incarnation: int
    """Counts openings for writing. Also kept beside the file: a file behind it was rolled back."""
    complete: bool
    """False when the file was restored or rolled back: "no row" then does not mean "never started"."""
    path: str | None = None


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A moment's view of a store; counts since it was opened."""

    degraded: str | None = None
    """Why writes are waiting, in words without values; None when all is well."""
    queued: int = 0
    commits: int = 0
    statements: int = 0
    commit_seconds: float = 0.0
    """Seconds spent in commits, failed ones included."""


class Store(Protocol):
    """A journal. Use as an async context manager; reads see every write whose receipt was committed."""

    @property
    def info(self) -> StoreInfo:
        """Identity and incarnation. Raises RuntimeStateError before the store is open."""
        ...

    @property
    def health(self) -> StoreHealth:
        """Whether the store is degraded, and how much it did."""
        ...

    async def open(self) -> None:
        """Open for writing, taking the lock.

        Raises:
            StoreLockedError: another process owns the file.
            StoreVersionError: the file is newer than this release, or not a store.
            StoreCorruptError: the file is damaged.
            StoreUnavailableError: the file cannot be written here, or lies on a network file system.
        """
        ...

    async def aclose(self) -> None:
        """Commit what is queued, close and release the lock. Never cancelled half-way."""
        ...

    def write(self, *statements: Write, lazy: bool = False) -> Receipt:
        """Queue one transaction, in the order of the calls to this method, and return at once."""
        ...

    async def flush(self) -> None:
        """Return when everything queued before the call is on stable storage, lazy writes included."""
        ...

    async def open_calls(self, session_id: str) -> list[CallRecord]:
        """Return the session's calls that are not closed, oldest first."""
        ...

    async def calls_by_key(self, keys: Sequence[CallKey]) -> dict[CallKey, CallRecord]:
        """Return those of these calls that have a row, in whatever state."""
        ...

    async def calls(
        self,
        *,
        session_id: str | None = None,
        states: Sequence[CallState] | None = None,
        limit: int = 100,
    ) -> list[CallRecord]:
        """Return calls, newest first."""
        ...

    async def find_calls(self, prefix: str) -> list[CallRecord]:
        """Return up to ten calls whose public id starts with `prefix` (lower case hex) or whose call_id equals it."""
        ...

    async def transitions(self, key: CallKey) -> list[TransitionRecord]:
        """Return the life of a call, oldest step first."""
        ...

    async def checkpoints(self, key: CallKey) -> dict[str, bytes]:
        """Return the named facts its attempts left."""
        ...

    async def late(self, key: CallKey) -> list[LateRecord]:
        """Return what its handler returned too late."""
        ...

    async def approval(self, key: CallKey) -> ApprovalRecord | None:
        """Return what is known of a call's approval, or None when none was asked for."""
        ...

    async def session(
        self, *, local_id: str | None = None, session_id: str | None = None, key: str | None = None
    ) -> SessionRecord | None:
        """Return one session by exactly one of its names, or None."""
        ...

    async def sessions(self, *, limit: int = 1000) -> list[SessionRecord]:
        """Return session rows, newest first."""
        ...

    async def unfinished_sessions(self) -> list[SessionRecord]:
        """Return the sessions to follow at start-up: state open, and an open call, an input not done, or active."""
        ...

    async def open_session_ids(self, *, origin: SessionOrigin, after: str = "", limit: int = 1000) -> list[str]:
        """Return ids of sessions in state open, in their order, those that are greater than `after` (a cursor)."""
        ...

    async def open_inputs(self, session_id: str) -> list[InputRecord]:
        """Return the session's inputs that are neither done nor refused, in order of seq."""
        ...

    async def inputs(self, session_id: str) -> list[InputRecord]:
        """Return all inputs of a session, in order of seq."""
        ...
