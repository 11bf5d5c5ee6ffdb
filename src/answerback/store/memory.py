"""A store in memory: the same meaning as on disk, for tests and simulations. Nothing survives the process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias

import anyio
import anyio.lowlevel

from answerback.errors import RuntimeStateError, StoreClosedError
from answerback.model import (
    OPEN_STATES,
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
from answerback.store.base import Receipt, StoreHealth, StoreInfo, Write
from answerback.store.batch import Applied
from answerback.store.memory_tables import Tables
from answerback.store.reads import one_name
from answerback.store.statements import check_changes
from answerback.store.trouble import Trouble
from answerback.store.writer import Writer

Failure: TypeAlias = Literal["full", "io", "io_landed"]
"""What a commit can be made to meet: a full disk (passes when lifted), an I/O error that left nothing, one that left
the whole batch."""


class MemoryStore:
    """A journal in memory, on any backend. Commits at the next scheduling point.

    The object is the "disk": after `aclose` or `crash`, `open` finds what was committed, under the next incarnation.

    Args:
        complete: what `info.complete` says; False plays a store that was rolled back.
    """

    def __init__(self, *, complete: bool = True) -> None:
        self._tables = Tables()
        self._store_id = uuid.uuid4().hex
        self._complete = complete
        self._faults = _Faults()
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return f"<MemoryStore {self._tables!r}, {'not opened' if self._writer is None else repr(self._writer)}>"

    @property
    def info(self) -> StoreInfo:
        """Identity and incarnation.

        Raises:
            RuntimeStateError: the store is not open.
        """
        self._check_open()
        return StoreInfo(store_id=self._store_id, incarnation=self._tables.incarnation, complete=self._complete)

    @property
    def health(self) -> StoreHealth:
        """Whether the store is degraded, and how much it did."""
        return StoreHealth() if self._writer is None else self._writer.health

    async def open(self) -> None:
        """Open for writing.

        Raises:
            RuntimeStateError: it is open already.
        """
        if self._writer is not None and not self._writer.closed:
            raise RuntimeStateError("this store is open already")
        self._tables.incarnation += 1
        self._writer = Writer(_MemoryJournal(self._tables, self._faults))
        await self._writer.start()

    async def aclose(self) -> None:
        """Commit what is queued and close. Never cancelled half-way."""
        if self._writer is not None:
            await self._writer.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def write(self, *statements: Write, lazy: bool = False) -> Receipt:
        """Queue one transaction, in the order of the calls to this method, and return at once.

        Raises:
            RuntimeStateError: the store was not opened.
            StoreClosedError: it was closed.
            ValueError: a statement names columns it may not change.
        """
        for statement in statements:
            check_changes(statement)
        return self._open_writer().submit(statements, lazy=lazy)

    async def flush(self) -> None:
        """Return when everything queued before the call is committed, lazy writes included."""
        await self._open_writer().flush()

    # For tests -----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Die as a process does: what is not committed is gone, waiters are told so, `open` starts anew."""
        if self._writer is not None:
            self._writer.crash()
        # The life that follows starts without the faults, and its commits do not wait for the old one's.
        self._faults.replace()
        self._faults = _Faults()

    def hold_commits(self) -> None:
        """Let no commit pass until `release_commits`."""
        self._faults.hold()

    def release_commits(self) -> None:
        """Let commits pass again."""
        self._faults.release()

    def fail_commits(self, failure: Failure | None) -> None:
        """Make every commit fail in this way; None ends it. The I/O errors happen once each time they are asked for."""
        self._faults.failure = failure

    # Reads ---------------------------------------------------------------------------------------------------------

    async def open_calls(self, session_id: str) -> list[CallRecord]:
        """Return the session's calls that are not closed, oldest first."""
        return (await self._read()).calls_where(session_id=session_id, states=OPEN_STATES)

    async def calls_by_key(self, keys: Sequence[CallKey]) -> dict[CallKey, CallRecord]:
        """Return those of these calls that have a row, in whatever state."""
        calls = (await self._read()).calls
        return {key: calls[key] for key in keys if key in calls}

    async def calls(
        self, *, session_id: str | None = None, states: Sequence[CallState] | None = None, limit: int = 100
    ) -> list[CallRecord]:
        """Return calls, newest first."""
        return (await self._read()).calls_where(session_id=session_id, states=states)[::-1][:limit]

    async def find_calls(self, prefix: str) -> list[CallRecord]:
        """Return up to ten calls whose public id starts with `prefix` (lower case hex) or whose call_id equals it."""
        newest_first = reversed((await self._read()).calls.values())
        found = [record for record in newest_first if _named(record.key, prefix)]
        return found[:10]

    async def transitions(self, key: CallKey) -> list[TransitionRecord]:
        """Return the life of a call, oldest step first."""
        return list((await self._read()).transitions.get(key, ()))

    async def checkpoints(self, key: CallKey) -> dict[str, bytes]:
        """Return the named facts its attempts left."""
        return dict((await self._read()).checkpoints.get(key, {}))

    async def approval(self, key: CallKey) -> ApprovalRecord | None:
        """Return what is known of a call's approval, or None when none was asked for."""
        return (await self._read()).approvals.get(key)

    async def late(self, key: CallKey) -> list[LateRecord]:
        """Return what its handler returned too late."""
        return list((await self._read()).late.get(key, ()))

    async def session(
        self, *, local_id: str | None = None, session_id: str | None = None, key: str | None = None
    ) -> SessionRecord | None:
        """Return one session by exactly one of its names, or None.

        Raises:
            ValueError: no name was given, or several.
        """
        column, value = one_name(local_id=local_id, session_id=session_id, key=key)
        sessions = (await self._read()).sessions.values()
        return next((record for record in sessions if getattr(record, column) == value), None)

    async def sessions(self, *, limit: int = 1000) -> list[SessionRecord]:
        """Return session rows, newest first."""
        return list((await self._read()).sessions.values())[::-1][:limit]

    async def unfinished_sessions(self) -> list[SessionRecord]:
        """Return the sessions to follow at start-up: state open, and an open call, an input not done, or active."""
        return (await self._read()).unfinished_sessions()

    async def open_session_ids(self, *, origin: SessionOrigin, after: str = "", limit: int = 1000) -> list[str]:
        """Return ids of sessions in state open, in their order, those that are greater than `after` (a cursor)."""
        return (await self._read()).open_session_ids(origin, after)[:limit]

    async def open_inputs(self, session_id: str) -> list[InputRecord]:
        """Return the session's inputs that are neither done nor refused, in order of seq."""
        return (await self._read()).inputs_of(session_id, pending=True)

    async def inputs(self, session_id: str) -> list[InputRecord]:
        """Return all inputs of a session, in order of seq."""
        return (await self._read()).inputs_of(session_id, pending=False)

    async def _read(self) -> Tables:
        self._open_writer()
        await anyio.lowlevel.checkpoint()
        return self._tables

    def _check_open(self) -> Writer:
        if self._writer is None or self._writer.finished:
            raise RuntimeStateError("the store is not open: async with MemoryStore() as store")
        return self._writer

    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise RuntimeStateError("the store is not open: async with MemoryStore() as store")
        if self._writer.closed:
            raise StoreClosedError("the store is closed: open it again")
        return self._writer


def _named(key: CallKey, prefix: str) -> bool:
    return key.call_id == prefix or key.digest.startswith(prefix)


class _Faults:
    """What the test wants to happen to the commits of one life of the store."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.dead = False
        self._gate: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<_Faults {self.failure}, {'open' if self._gate is None else 'held'}{', dead' if self.dead else ''}>"

    def hold(self) -> None:
        if self._gate is None:
            self._gate = anyio.Event()

    def release(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    def replace(self) -> None:
        """End the life these faults belong to."""
        self.dead = True
        self.release()

    async def gate(self) -> None:
        """Wait until commits may pass; always a scheduling point."""
        await anyio.lowlevel.checkpoint()
        while self._gate is not None:
            await self._gate.wait()


class _MemoryJournal:
    """The tables as a writer's journal."""

    def __init__(self, tables: Tables, faults: _Faults) -> None:
        self._tables = tables
        self._faults = faults
        self._landed = 0

    def __repr__(self) -> str:
        return f"<_MemoryJournal {self._tables!r}>"

    async def open(self, interrupted: Callable[[], None]) -> None:
        """Nothing to open; a cancellation leaves nothing behind."""
        del interrupted
        await anyio.lowlevel.checkpoint()

    async def apply(self, transactions: Sequence[Sequence[Write]], *, number: int) -> Applied:
        """Apply all, after the gate and without a scheduling point in between."""
        await self._faults.gate()
        failure = self._faults.failure
        if self._faults.dead:
            return Applied(trouble=Trouble.WAIT, detail="crash")
        if failure == "full":
            return Applied(trouble=Trouble.WAIT, detail="full")
        if failure == "io":
            self._faults.failure = None
            return Applied(trouble=Trouble.BROKEN, detail="io")
        results = tuple(self._tables.apply(transaction) for transaction in transactions)
        self._landed = number
        if failure == "io_landed":
            self._faults.failure = None
            return Applied(results=results, trouble=Trouble.BROKEN, detail="io", committing=True)
        return Applied(results=results)

    async def recover(self, number: int) -> bool:
        """Tell whether the batch landed."""
        await anyio.lowlevel.checkpoint()
        return self._landed == number

    async def close(self) -> None:
        """Nothing to close."""
        await anyio.lowlevel.checkpoint()
