"""The one decider: what to do about each call, from what the session asks for and what the journal says.

`reconcile` is a pure function and this module is the recovery table: every wake source (stream, poll, `wake`,
restart) ends here, and nothing else starts or settles a call. It is the model the property tests check against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from answerback.actors.messages import Asked, Reading
from answerback.model import CallKey, CallRecord, CallState, Effects

SUBMIT_GRACE = 5_000_000
"""Microseconds a result that was accepted (202) may stay listed before it counts as lost by the server."""


class Rules(msgspec.Struct, frozen=True):
    """What the table needs to know of the tool behind a name."""

    effects: Effects = "once"
    attempts: int = 1
    """How many process deaths make a call poisonous: it is answered then instead of being started once more."""
    version: str = ""
    """The handler's version; an `idempotent` call is only repeated by the code that began it."""


class Entry(msgspec.Struct, frozen=True):
    """A journal row, and the tick of the last thing written or sent about it."""

    record: CallRecord
    touched: int = 0


class Context(msgspec.Struct, frozen=True):
    """The rest of what a decision depends on."""

    running: AbstractSet[CallKey]
    """Calls with a task in this process: a handler, a queued start, a verify hook, a hold."""
    incarnation: int
    complete: bool
    """Whether "no row" means "never started here": False after a restore or a rollback."""
    now: int
    rules: Callable[[str], Rules]
    suspicious: AbstractSet[CallKey] = frozenset()
    """Calls that were pending when the session was attached with `pending="verify"`."""


class Observe(msgspec.Struct, frozen=True):
    """Write the first row of a call (T0) and run it."""

    key: CallKey
    asked: Asked


class ObserveInterrupted(msgspec.Struct, frozen=True):
    """Write the first row of a call that may have been started by somebody else, as INDETERMINATE."""

    key: CallKey
    asked: Asked


class Run(msgspec.Struct, frozen=True):
    """Run a call that was never started, or goes on after a retry pause."""

    key: CallKey


class Rerun(msgspec.Struct, frozen=True):
    """Run an interrupted `read` or `idempotent` call again, as attempt n+1."""

    key: CallKey
    crashed: bool
    """Whether this counts a death of its process."""


class Poison(msgspec.Struct, frozen=True):
    """Answer a call whose process died too often with an error instead of running it again."""

    key: CallKey


class Interrupt(msgspec.Struct, frozen=True):
    """Mark a started `once` call whose process is gone as INDETERMINATE, then resolve it."""

    key: CallKey


class Resolve(msgspec.Struct, frozen=True):
    """Decide an INDETERMINATE call: verify hook, then the tool's policy."""

    key: CallKey


class Submit(msgspec.Struct, frozen=True):
    """Send the stored bytes; with `again`, under a new epoch because the server lost what it had accepted."""

    key: CallKey
    again: bool = False


class Cancel(msgspec.Struct, frozen=True):
    """Nobody waits for this running call any more: one cancel, a grace time, keep what comes of it."""

    key: CallKey


class Settle(msgspec.Struct, frozen=True):
    """A call with stored bytes is no longer required: the turn's items tell ACKED from OBSOLETE."""

    key: CallKey


class Close(msgspec.Struct, frozen=True):
    """Move a call to a closed state; nothing is sent."""

    key: CallKey
    target: CallState
    reason: str


class Reopen(msgspec.Struct, frozen=True):
    """A call that was closed as obsolete is required again."""

    key: CallKey
    target: CallState


class Conflict(msgspec.Struct, frozen=True):
    """The same call came with other arguments: a broken server; nothing more may run in this session."""

    key: CallKey


class LookAgain(msgspec.Struct, frozen=True):
    """Read the session (again), not before `at` (microseconds; None: now)."""

    reason: str
    at: int | None = None


Decision: TypeAlias = (
    Observe
    | ObserveInterrupted
    | Run
    | Rerun
    | Poison
    | Interrupt
    | Resolve
    | Submit
    | Cancel
    | Settle
    | Close
    | Reopen
    | Conflict
    | LookAgain
)


def reconcile(reading: Reading, entries: Mapping[CallKey, Entry], context: Context) -> list[Decision]:
    """Return what to do now.

    Args:
        reading: the required function calls; only a GET may prove that something is *not* required.
        entries: every open call of the session, and the rows (open or closed) of the calls in `reading`.
        context: what runs in this process, and the circumstances.

    A conflict comes alone: no sibling is started beside it.
    """
    decisions: list[Decision] = []
    for key, asked in reading.asked.items():
        entry = entries.get(key)
        if entry is None:
            decisions.append(_first_seen(key, asked, context))
        elif entry.record.arguments_hash != asked.arguments_hash:
            return [Conflict(key)]
        else:
            decisions += _required(entry, reading, context)
    for key, entry in entries.items():
        if key not in reading.asked:
            decisions += _absent(entry, reading, context)
    return decisions


def _absent(entry: Entry, reading: Reading, context: Context) -> list[Decision]:
    """Decide about an open call that the reading does not list."""
    if _absence_counts(reading, entry):
        return _not_required(entry, context)
    taken = entry.record.state is CallState.SUBMITTED and entry.record.submit_status == "accepted"
    if reading.sent_at is not None and taken:
        # The answer came while this GET was under way, and nothing else may ever bring the next one: it is the last
        # result of its turn. The row is not touched again, so that one settles it.
        return [LookAgain("a result was accepted after this reading was sent")]
    return []


def _absence_counts(reading: Reading, entry: Entry) -> bool:
    """Only a GET sent after the last write or POST about a call knows whether it is still required."""
    return reading.sent_at is not None and reading.sent_at > entry.touched


def _first_seen(key: CallKey, asked: Asked, context: Context) -> Decision:
    certain = context.complete and key not in context.suspicious
    if certain or context.rules(asked.name).effects != "once":
        return Observe(key, asked)
    return ObserveInterrupted(key, asked)


def _required(entry: Entry, reading: Reading, context: Context) -> list[Decision]:
    """Decide about a call the session waits for."""
    record = entry.record
    key = record.key
    if key in context.running:
        return []
    match record.state:
        case CallState.REQUESTED:
            return [Run(key)]
        case CallState.WAITING_APPROVAL:
            return []
        case CallState.STARTED:
            return [_interrupted(record, context)]
        case CallState.INDETERMINATE:
            rerunnable = _may_rerun(record, context.rules(record.name))
            return [Rerun(key, crashed=False) if rerunnable else Resolve(key)]
        case CallState.FINISHED | CallState.SUBMITTED if _forgotten(record):
            return [Reopen(key, CallState.INDETERMINATE)]
        case CallState.FINISHED:
            return [Submit(key)]
        case CallState.SUBMITTED:
            return _submitted(entry, reading, context)
        case _:
            return _closed_but_required(entry, reading, context)


def _may_rerun(record: CallRecord, rules: Rules) -> bool:
    """Whether starting the call again is declared harmless, both by the code that began it and by today's."""
    if "once" in {record.effects, rules.effects}:
        return False
    return rules.effects == "read" or record.handler_version == rules.version


def _interrupted(record: CallRecord, context: Context) -> Decision:
    """Decide about a STARTED row without a task: its process is gone, or its task here failed before an outcome."""
    rules = context.rules(record.name)
    if not _may_rerun(record, rules):
        return Interrupt(record.key)
    if record.crash_count + 1 >= rules.attempts:
        return Poison(record.key)
    return Rerun(record.key, crashed=True)


def _submitted(entry: Entry, reading: Reading, context: Context) -> list[Decision]:
    record = entry.record
    if record.submit_status != "accepted":
        return [Submit(record.key)]
    # A frame may have been written before the server took the result; a GET sent afterwards may not.
    if not _absence_counts(reading, entry):
        return []
    return [_in_grace(record, context) or Submit(record.key, again=True)]


def _in_grace(record: CallRecord, context: Context) -> LookAgain | None:
    """Give the server time to take an accepted result off its list before it counts as lost."""
    accepted_at = record.submitted_at or 0
    # A clock that was set back must not stretch the grace to hours: then it is over at once, which costs one repeat.
    if 0 <= context.now - accepted_at < SUBMIT_GRACE:
        return LookAgain("accepted result still listed", at=accepted_at + SUBMIT_GRACE)
    return None


def _closed_but_required(entry: Entry, reading: Reading, context: Context) -> list[Decision]:
    """Decide about a closed call that is listed: an old frame, or a server that lost what it had accepted."""
    record = entry.record
    if not _absence_counts(reading, entry):
        # Also for a GET that is older than the row: after a restart nothing else would bring a newer one soon.
        return [LookAgain("a closed call is listed")]
    if record.submit_status == "accepted" and (pause := _in_grace(record, context)) is not None:
        # Its output was seen before the list was: the two need not change in one moment.
        return [pause]
    if record.payload is not None:
        return [Submit(record.key, again=record.submit_status == "accepted" or record.state is CallState.ACKED)]
    rerunnable = _may_rerun(record, context.rules(record.name))
    if not rerunnable and (record.state is CallState.OBSOLETE_UNKNOWN or _forgotten(record)):
        return [Reopen(record.key, CallState.INDETERMINATE)]
    return [Reopen(record.key, CallState.REQUESTED)]


def _not_required(entry: Entry, context: Context) -> list[Decision]:
    """Decide about an open call that a fresh GET does not list."""
    record = entry.record
    key = record.key
    if record.is_async and key in context.running:
        return []
    if record.is_async and _unsent(record):
        # The result of an `async` function is wanted although the session does not wait for it.
        return [Submit(key)]
    if key in context.running and record.state in {CallState.REQUESTED, CallState.STARTED}:
        return [Cancel(key)]
    match record.state:
        case CallState.REQUESTED | CallState.WAITING_APPROVAL:
            return [Close(key, CallState.OBSOLETE, "no longer required; nothing was started")]
        case CallState.STARTED:
            return [Close(key, CallState.OBSOLETE_UNKNOWN, "no longer required; it was started and never finished")]
        case CallState.FINISHED:
            return [Settle(key)]
        case CallState.SUBMITTED if record.submit_status == "accepted":
            return [Close(key, CallState.ACKED, "accepted, and no longer required")]
        case CallState.SUBMITTED:
            return [Settle(key)]
        case _:
            return []


def _forgotten(record: CallRecord) -> bool:
    """Whether the call had an outcome that retention took: it is never run as if it were new."""
    return record.outcome_kind is not None and record.payload is None


def _unsent(record: CallRecord) -> bool:
    """Whether there is a result and no answer says that the server has it."""
    return record.state in {CallState.FINISHED, CallState.SUBMITTED} and record.submit_status != "accepted"
