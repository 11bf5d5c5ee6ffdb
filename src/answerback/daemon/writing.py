"""Who carries out a command that writes: the daemon of the store, else this process if nobody has the store."""

from __future__ import annotations

import getpass
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from answerback.daemon.address import find_daemon
from answerback.daemon.journal import read
from answerback.daemon.output import call_facts, session_facts
from answerback.daemon.remote import Remote, locked, path_of
from answerback.errors import SessionError
from answerback.model import CallRecord, SessionRecord
from answerback.names import find_call, short_ids
from answerback.store.base import Store, UpdateSession
from answerback.store.reader import SQLiteReader, lock_owner
from answerback.store.sqlite import SQLiteStore


def change_call(
    path: Path,
    name: str,
    verb: str,
    body: dict[str, Any],
    *,
    alone: Callable[[Store, str], Awaitable[CallRecord]],
    instead: Callable[[str], str],
) -> dict[str, Any]:
    """Change a call and return its facts.

    Args:
        path: the store.
        name: the call.
        verb: what the daemon's route is called.
        body: what the daemon is told.
        alone: what to do on the store when nobody has it, given the call's whole public id.
        instead: what to ask of a process that has the store and no admin, given the call's short id.

    Raises:
        UnknownCallError: no call, or several, have this name.
        DecisionError: the call is not in a state for this.
        StoreLockedError: a process without an admin has the store.
        RemoteError: the daemon said no.
    """

    async def named(reader: SQLiteReader) -> tuple[str, str]:
        call = await find_call(reader, name)
        return call.public_id, (await short_ids(reader, [call]))[0]

    # The daemon first: it knows calls whose rows are not on disk yet, and what a person was just told of.
    answer = ask_daemon(path, path_of("calls", name, verb), body)
    if answer is not None:
        facts: dict[str, Any] = answer["call"]
        return facts
    full, short = read(path, named)
    owner = lock_owner(path)
    if owner is not None:
        raise locked(path, owner, instead(short))

    async def write() -> dict[str, Any]:
        async with SQLiteStore(path) as store:
            return call_facts(await alone(store, full), short=short)

    return anyio.run(write)


def change_session(path: Path, name: str, verb: str, *, target: str) -> dict[str, Any]:
    """Pause or resume a session and return its facts; errors as in `change_call`, and SessionError for a name."""
    answer = ask_daemon(path, path_of("sessions", name, verb))
    if answer is not None:
        facts: dict[str, Any] = answer["session"]
        return facts
    session = find_session(path, name)
    owner = lock_owner(path)
    if owner is not None:
        raise locked(path, owner, f"with runtime.{verb}({session.session_id!r})")

    async def write() -> dict[str, Any]:
        async with SQLiteStore(path) as store:
            return session_facts(await _set_state(store, session, target))

    return anyio.run(write)


def ask_daemon(path: Path, route: str, body: dict[str, Any] | None = None) -> Any:
    """Return what the daemon of a store answers, or None where there is no daemon.

    Raises:
        RemoteError: the daemon said no.
        StartError: it does not answer.
    """
    address = find_daemon(path)
    if address is None:
        return None
    with Remote(address) as daemon:
        return daemon.post(route, body)


def find_session(path: Path, name: str) -> SessionRecord:
    """Return the session of this id, key or local id.

    Raises:
        SessionError: the store has none, or its creation was never confirmed.
        StoreError: there is no store at this path, or it cannot be read.
    """
    found = read(path, lambda reader: session_of(reader, name))
    if found is None or found.session_id is None:
        raise SessionError(f"No session is named {name!r}. `answerback ls` lists them.", session_id=name)
    return found


async def session_of(reader: SQLiteReader, name: str) -> SessionRecord | None:
    """Return the session of this id, key or local id, or None."""
    by_id = await reader.session(session_id=name)
    return by_id or await reader.session(key=name) or await reader.session(local_id=name)


def who() -> str:
    """Return who decides, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "somebody"


PAUSABLE = frozenset({"open", "quarantined"})
RESUMABLE = frozenset({"paused", "quarantined"})


async def _set_state(store: Store, session: SessionRecord, target: str) -> SessionRecord:
    record = await store.session(local_id=session.local_id)
    allowed = PAUSABLE if target == "paused" else RESUMABLE
    if record is None or (record.state not in allowed and record.state != target):
        state = "gone" if record is None else record.state
        raise SessionError(
            f"session {session.session_id} is {state}; nothing was changed", session_id=session.session_id or ""
        )
    # Somebody wanted it back: the next start looks at it, whatever is known to be open.
    changes: dict[str, Any] = {
        "state": target,
        "reason": None,
        "active": record.active or target == "open",
        "updated_at": time.time_ns() // 1000,
    }
    await store.write(UpdateSession(local_id=record.local_id, changes=changes)).committed()
    now = await store.session(local_id=record.local_id)
    assert now is not None
    return now
