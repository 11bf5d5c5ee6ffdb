"""Prove the promises from what is left: the handlers' log, the server's log, and the store file. Nothing else is read.

`check` is about one session. It may look at a moment (right after a kill) or at the end, when nothing may be open.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from chaos.kill_case import Line

Key: TypeAlias = tuple[str, str, str]
"""session_id, turn_id, call_id."""

CLOSED = frozenset({"acked", "obsolete", "obsolete_unknown", "superseded"})
UNFINISHED = frozenset({"requested", "waiting_approval", "started", "indeterminate"})
ATTEMPT = re.compile(r"by attempt (\d+) of process")


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the store."""

    key: Key
    state: str
    outcome_kind: str | None = None
    outcome: bytes | None = None
    outcome_hash: str | None = None
    substitute: bytes | None = None
    submit_epoch: int = 0
    hold_until: int | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the store's timeline."""

    key: Key
    seq: int
    source: str
    target: str
    attempt: int
    pid: int


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """One result the server was sent, accepted or not."""

    key: Key
    status: int
    element: bytes
    body_sha256: str
    idempotency_key: str | None
    request: int
    effect: bool


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is left of one session."""

    lines: Sequence[Line] = ()
    calls: Sequence[StoredCall] = ()
    steps: Sequence[Step] = ()
    sent: Sequence[Sent] = ()
    status: str = ""
    """The session's, as the server retrieves it."""
    required: Sequence[str] = ()
    """Call ids the server still asks for."""


class Violation(msgspec.Struct, frozen=True):
    """A promise that does not hold."""

    promise: str
    call: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise} {self.call}: {self.text}"


def check(evidence: Evidence, *, final: bool = True) -> list[Violation]:
    """Return every violation; with `final`, also what should not be open any more."""
    found = [*started_once(evidence), *one_outcome(evidence), *stored_before_sent(evidence), *no_silent_rerun(evidence)]
    if final:
        found += no_limbo(evidence)
    return found


def started_once(evidence: Evidence) -> list[Violation]:
    """P1: an attempt is entered once, and a `once` handler only behind a STARTED row written by its own process.

    An `idempotent` handler does not wait for that row: when its process dies at once, the next one may give the same
    number again. Within one process no attempt is entered twice, whatever the handler.
    """
    found: list[Violation] = []
    entries = [line for line in evidence.lines if line.what == "entry"]
    counted = Counter((key_of(line), line.attempt, 0 if line.effects == "once" else line.pid) for line in entries)
    for (key, attempt, _), count in counted.items():
        if count > 1:
            found.append(Violation("P1", key[2], f"attempt {attempt} was entered {count} times"))
    started = {(step.key, step.attempt): step.pid for step in evidence.steps if step.target == "started"}
    for line in entries:
        if line.effects != "once":
            continue
        pid = started.get((key_of(line), line.attempt))
        if pid is None:
            found.append(Violation("P1", line.call_id, f"attempt {line.attempt} was entered without a STARTED row"))
        elif pid != line.pid:
            found.append(Violation("P1", line.call_id, f"attempt {line.attempt} was entered by another process"))
    return found


def one_outcome(evidence: Evidence) -> list[Violation]:
    """P2: one outcome per call, of the newest attempt, and everything the server accepted is exactly that."""
    found: list[Violation] = []
    finishes: dict[Key, list[Step]] = {}
    for step in evidence.steps:
        if step.target == "finished" and step.source in UNFINISHED:
            finishes.setdefault(step.key, []).append(step)
    for key, steps in finishes.items():
        if len(steps) > 1:
            found.append(Violation("P2", key[2], f"{len(steps)} outcomes were stored"))
    for call in evidence.calls:
        if call.outcome is not None:
            found += _outcome(call, finishes.get(call.key, []))
    accepted: dict[Key, set[bytes]] = {}
    for sent in evidence.sent:
        if sent.status == 202:
            accepted.setdefault(sent.key, set()).add(sent.element)
    for key, elements in accepted.items():
        if len(elements) > 1:
            found.append(Violation("P2", key[2], f"{len(elements)} different results were accepted"))
    return found


def _outcome(call: StoredCall, finishes: Sequence[Step]) -> list[Violation]:
    assert call.outcome is not None
    found: list[Violation] = []
    if hashlib.sha256(call.outcome).hexdigest() != call.outcome_hash:
        found.append(Violation("P2", call.key[2], "the outcome is not the one that was stored"))
    if not finishes:
        found.append(Violation("P2", call.key[2], "an outcome is there that was never stored"))
    told = ATTEMPT.search(call.outcome.decode())
    if told is not None and finishes and int(told[1]) != finishes[0].attempt:
        text = f"attempt {told[1]} stored an outcome while attempt {finishes[0].attempt} was the current one"
        found.append(Violation("P2", call.key[2], text))
    return found


def stored_before_sent(evidence: Evidence) -> list[Violation]:
    """P3: nothing was sent that is not stored, byte for byte; and a repeat is known by its key."""
    stored = {call.key: {call.outcome, call.substitute} - {None} for call in evidence.calls}
    found = [
        Violation("P3", sent.key[2], f"bytes were sent (HTTP {sent.status}) that are not stored")
        for sent in evidence.sent
        if sent.element not in stored.get(sent.key, set())
    ]
    epochs = {call.key: call.submit_epoch for call in evidence.calls}
    keys: dict[str, set[str | None]] = {}
    for sent in evidence.sent:
        keys.setdefault(sent.body_sha256, set()).add(sent.idempotency_key)
    for body, used in keys.items():
        members = {sent.key for sent in evidence.sent if sent.body_sha256 == body}
        # The epoch of each member may have been raised, one at a time; each time makes another key.
        limit = 1 + sum(epochs.get(key, 0) for key in members)
        if len(used) > limit or None in used:
            call = min(members)[2]
            found.append(Violation("P3", call, f"the same body was sent under {len(used)} keys, {limit} expected"))
    return found


def no_silent_rerun(evidence: Evidence) -> list[Violation]:
    """P4: a `once` call is entered again only after a verdict that it did not happen, which was true."""
    found: list[Violation] = []
    by_key: dict[Key, list[Line]] = {}
    for line in evidence.lines:
        by_key.setdefault(key_of(line), []).append(line)
    for key, lines in by_key.items():
        if len({line.idempotency_key for line in lines}) > 1:
            found.append(Violation("P4", key[2], "attempts were given different idempotency keys"))
        if any(line.effects != "once" for line in lines):
            continue
        if sum(line.what == "effect" for line in lines) > 1:
            found.append(Violation("P4", key[2], "the effect happened more than once"))
        entries = [line for line in lines if line.what == "entry"]
        for before, after in pairwise(entries):
            if any(line.what == "effect" for line in lines[: lines.index(after)]):
                found.append(Violation("P4", key[2], f"attempt {after.attempt} was entered after the effect"))
            if not _decided_between(evidence.steps, key, before.attempt, after.attempt):
                found.append(Violation("P4", key[2], f"attempt {after.attempt} was entered without a verdict"))
    return found


def _decided_between(steps: Iterable[Step], key: Key, before: int, after: int) -> bool:
    """Tell whether the timeline says, between two attempts, that the first did not happen."""
    mine = [step for step in steps if step.key == key]
    since = next((step.seq for step in mine if step.target == "started" and step.attempt == before), None)
    until = next((step.seq for step in mine if step.target == "started" and step.attempt == after), None)
    if since is None or until is None:
        return False
    return any(
        since < step.seq < until and (step.source, step.target) == ("indeterminate", "requested") for step in mine
    )


def no_limbo(evidence: Evidence) -> list[Violation]:
    """P5: nothing is asked for any more, and what is open is held where somebody sees it."""
    found = [Violation("P5", call_id, "the server still asks for it") for call_id in evidence.required]
    if evidence.status != "idle":
        found.append(Violation("P5", "-", f"the session is {evidence.status or 'unknown'}, not idle"))
    for call in evidence.calls:
        held = call.state == "indeterminate" and call.hold_until is not None
        if call.state not in CLOSED and not held:
            found.append(Violation("P5", call.key[2], f"its row was left as {call.state}"))
    return found


def answered_too_early(evidence: Evidence) -> list[Violation]:
    """Return the calls that were taken up before they were asked for, as a run without faults shows it.

    Either the server refused the result, or the call was closed because nobody asked for it, and then somebody did.
    """
    found = [
        Violation("asked", sent.key[2], f"its result was refused (HTTP {sent.status})")
        for sent in evidence.sent
        if 400 <= sent.status < 500 and sent.status != 429
    ]
    found += [
        Violation("asked", step.key[2], "it was run and closed before it was asked for")
        for step in evidence.steps
        if step.source in {"obsolete", "obsolete_unknown"}
    ]
    return found


def outcomes_lost(evidence: Evidence) -> list[Violation]:
    """Return the calls whose handler ended in a process that ended in order, and whose outcome is not stored."""
    kinds = {call.key: call.outcome_kind for call in evidence.calls}
    return [
        Violation("end", line.call_id, "its handler ended and its outcome was lost")
        for line in evidence.lines
        if line.what == "effect" and kinds.get(key_of(line)) != "ok"
    ]


def most_at_once(evidence: Evidence) -> int:
    """Return how many handlers were between entry and effect at the same time."""
    inside = most = 0
    for line in evidence.lines:
        inside += {"entry": 1, "effect": -1}.get(line.what, 0)
        most = max(most, inside)
    return most


def key_of(line: Line) -> Key:
    """Return the identity of the call a line is about."""
    return (line.session_id, line.turn_id, line.call_id)


def read_sent(entries: Iterable[dict[str, Any]], session_id: str) -> list[Sent]:
    """Pick the results of a session out of the server's log."""
    return [
        Sent(
            key=(session_id, entry["turn_id"] or "", entry["call_id"] or ""),
            status=entry["status"],
            element=entry["body"].encode(),
            body_sha256=entry["body_sha256"],
            idempotency_key=entry["idempotency_key"],
            request=entry["request"],
            effect=entry["effect"],
        )
        for entry in entries
        if entry["kind"] == "tool_result" and entry["session_id"] == session_id
    ]
