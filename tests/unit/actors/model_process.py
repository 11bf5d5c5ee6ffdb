"""A process for the recovery model: it performs the decisions of the real `reconcile` and `interpret`, and may die.

What it may never do is asserted where it would do it, with the promise's name in front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from answerback.actors import reconcile as table
from answerback.actors.messages import Asked, Reading
from answerback.actors.reconcile import Context, Entry, Rules, reconcile
from answerback.actors.submit import SENDABLE, Answer, interpret, take
from answerback.errors import ApiError
from answerback.model import CallKey, CallRecord, CallState, Effects, SubmitStatus
from answerback.store.base import InsertCall, PutSubstitute, UpdateCall
from answerback.wire import inputs
from unit.actors.model_server import Clock, ModelServer
from unit.actors.model_store import ModelStore
from unit.actors.rows import element

EFFECTS: Mapping[str, Effects] = {"once": "once", "idempotent": "idempotent", "read": "read"}
Verdict = Literal["hook", "tell_model", "hold"]


def rules(name: str) -> Rules:
    """A tool is named by its effects here."""
    effects = EFFECTS[name]
    return Rules(effects=effects, attempts=1 if effects == "once" else 3)


class Log:
    """What happened outside of any process's memory: bodies entered, effects made, bytes sent, words given."""

    def __init__(self) -> None:
        self.entered: set[tuple[CallKey, int]] = set()
        self.ever_entered: set[CallKey] = set()
        self.not_happened: set[CallKey] = set()
        """`once` calls that may be entered once more, because somebody said that they did not happen."""
        self.effects: Counter[CallKey] = Counter()
        self.sent: dict[tuple[CallKey, bool], bytes] = {}


class Task(msgspec.Struct):
    """What runs for a call in this process."""

    kind: Literal["run", "resolve", "poison"]
    crashed: bool = False
    phase: Literal["queued", "entered", "effect", "held"] = "queued"
    unwanted: bool = False


class Post(msgspec.Struct, frozen=True):
    """A POST on its way."""

    members: tuple[CallKey, ...]
    body: bytes
    key: str


class Process:
    """One life of the client, from a start to a crash."""

    def __init__(self, incarnation: int, clock: Clock, server: ModelServer, store: ModelStore, log: Log) -> None:
        self.incarnation = incarnation
        self.clock = clock
        self.server = server
        self.store = store
        self.log = log
        self.tasks: dict[CallKey, Task] = {}
        self.batches: list[tuple[CallKey, ...]] = []
        self.ready: list[CallKey] = []
        self.post: Post | None = None
        self.answer: tuple[ApiError | None] | None = None
        self.asked: dict[CallKey, Asked] = {}
        self.wants_to_read = True
        """Nothing in the model reads by itself: whoever needs a newer list has to say so."""
        tick = clock.tick()
        self.entries = {key: Entry(row, tick) for key, row in store.rows.items() if not row.state.closed}
        self.closed: dict[CallKey, Entry] = {}

    @property
    def outgoing(self) -> bool:
        """Whether something is to be sent, or on its way."""
        return bool(self.post or self.ready or self.batches)

    # --- the journal's mirror -------------------------------------------------------------------------------------

    def record(self, key: CallKey) -> CallRecord:
        """Return what memory has of a call."""
        entry = self.entries.get(key) or self.closed[key]
        return entry.record

    def _keep(self, record: CallRecord, touched: int) -> None:
        home, other = (self.closed, self.entries) if record.state.closed else (self.entries, self.closed)
        other.pop(record.key, None)
        home[record.key] = Entry(record, touched)

    def _move(self, key: CallKey, target: CallState, *, commit: bool = False, **changes: Any) -> int:
        before = self.record(key)
        self.store.queue(
            UpdateCall(key=key, sources=(before.state,), target=target, at=self.clock.now, changes=changes)
        )
        count = self.store.commit() if commit else 1
        self._keep(msgspec.structs.replace(before, state=target, **changes), self.clock.tick())
        return count

    def _finish(self, key: CallKey, outcome: bytes, *, token: str | None, sources: tuple[CallState, ...]) -> None:
        """T2: on stable storage first, in the mirror afterwards."""
        changes: dict[str, Any] = {"outcome": outcome, "outcome_kind": "ok"}
        self.store.queue(
            UpdateCall(
                key=key, sources=sources, target=CallState.FINISHED, at=self.clock.now, changes=changes, token=token
            )
        )
        count = self.store.commit()
        self._keep(self.store.rows[key], self.clock.tick())
        assert count == 1, "P2: two outcomes for one call"

    # --- hints ----------------------------------------------------------------------------------------------------

    def read(self, reading: Reading, *, all_of_it: bool = True) -> None:
        """Take a list of what is asked for, from a frame or a GET."""
        if all_of_it:
            self.asked = dict(reading.asked)
        for key in reading.asked:
            if key not in self.entries and key not in self.closed and key in self.store.rows:
                self._keep(self.store.rows[key], self.clock.ticks)
        entries = self.entries | {key: self.closed[key] for key in reading.asked if key in self.closed}
        context = Context(
            running=self.tasks.keys(), incarnation=self.incarnation, complete=True, now=self.clock.now, rules=rules
        )
        for decision in reconcile(reading, entries, context):
            self._perform(decision)

    def output_seen(self, key: CallKey) -> None:
        """Take a frame with the output of a call."""
        entry = self.entries.get(key)
        if entry and entry.record.state is CallState.SUBMITTED and entry.record.submit_status == "accepted":
            self._move(key, CallState.ACKED)

    def _perform(self, decision: table.Decision) -> None:
        match decision:
            case table.Observe(key, asked):
                self._observe(key, asked, CallState.REQUESTED)
                self._start(key, "run")
            case table.Run(key):
                self._start(key, "run")
            case table.Rerun(key, crashed):
                self._start(key, "run", crashed=crashed)
            case table.Poison(key):
                self._start(key, "poison")
            case table.Interrupt(key):
                self._move(key, CallState.INDETERMINATE, crash_count=self.record(key).crash_count + 1)
                self._start(key, "resolve")
            case table.Resolve(key):
                self._start(key, "resolve")
            case table.Submit(key, again):
                self._submit(key, again=again)
            case table.Cancel(key):
                self._given_up(key)
                self.tasks[key].unwanted = True
            case table.Settle(key):
                self._given_up(key)
                self._settle(key)
            case table.Close(key, target):
                self._given_up(key)
                self._move(key, target)
            case table.Reopen(key, target):
                self._move(key, target)
                self._start(key, "resolve" if target is CallState.INDETERMINATE else "run")
            case table.LookAgain():
                self.wants_to_read = True
            case table.ObserveInterrupted() | table.Conflict():
                raise AssertionError(f"nothing in this world calls for {decision}")

    def _given_up(self, key: CallKey) -> None:
        touched = self.entries[key].touched
        assert self.server.was_unlisted_since(key, touched), "P5: given up while the session waited for it"

    def _observe(self, key: CallKey, asked: Asked, state: CallState) -> None:
        record = CallRecord(
            key=key, name=asked.name, arguments=asked.arguments, arguments_hash=asked.arguments_hash, state=state
        )
        self.store.queue(InsertCall(record))
        self._keep(record, self.clock.tick())

    def _start(self, key: CallKey, kind: Literal["run", "resolve", "poison"], *, crashed: bool = False) -> None:
        assert key not in self.tasks, "P1: a second task for a call that has one"
        self.tasks[key] = Task(kind, crashed=crashed)

    # --- tasks ----------------------------------------------------------------------------------------------------

    def step(self, key: CallKey, verdict: Verdict) -> None:
        """Let the task of a call do one thing; any two things may have a crash between them."""
        task = self.tasks[key]
        if task.kind == "poison":
            self._finish(key, element(key, "poisonous"), token=self.record(key).token, sources=(CallState.STARTED,))
            self._ended(key)
        elif task.kind == "resolve":
            self._resolve(key, task, verdict)
        elif task.phase == "queued":
            self._enter(key, task)
        elif task.phase == "entered" and task.unwanted:
            self._move(key, CallState.OBSOLETE_UNKNOWN)
            self._ended(key)
        elif task.phase == "entered":
            self.log.effects[key] += 1
            task.phase = "effect"
            assert self.record(key).effects != "once" or self.log.effects[key] == 1, "P4: a second effect"
        else:
            record = self.record(key)
            outcome = element(key, f"attempt {record.attempt} in process {self.incarnation}")
            self._finish(key, outcome, token=record.token, sources=(CallState.STARTED,))
            self._ended(key)

    def _ended(self, key: CallKey) -> None:
        del self.tasks[key]
        if key in self.asked and key in self.entries:
            self.read(Reading({key: self.asked[key]}), all_of_it=False)
        else:
            self.wants_to_read = True

    def _enter(self, key: CallKey, task: Task) -> None:
        record = self.record(key)
        if task.unwanted:
            if record.state is CallState.REQUESTED:
                self._move(key, CallState.OBSOLETE)
            self._ended(key)
            return
        effects = rules(record.name).effects
        token = f"{self.incarnation}.{self.clock.tick()}"
        count = self._move(
            key,
            CallState.STARTED,
            commit=effects == "once",
            attempt=record.attempt + 1,
            token=token,
            effects=effects,
            incarnation=self.incarnation,
            crash_count=record.crash_count + task.crashed,
        )
        assert count == 1, "P1: a start that was not the first"
        self._check_entry(key, effects, record.attempt + 1)
        task.phase = "entered"

    def _check_entry(self, key: CallKey, effects: Effects, attempt: int) -> None:
        if effects == "once":
            stored = self.store.rows[key]
            assert (stored.state, stored.attempt) == (CallState.STARTED, attempt), "P1: entered before it was stored"
            assert (key, attempt) not in self.log.entered, "P1: an attempt was entered twice"
            assert key not in self.log.ever_entered or key in self.log.not_happened, "P4: silently run again"
            self.log.not_happened.discard(key)
        self.log.entered.add((key, attempt))
        self.log.ever_entered.add(key)

    def _resolve(self, key: CallKey, task: Task, verdict: Verdict) -> None:
        happened = self.log.effects[key] > 0
        if verdict == "hold":
            task.phase = "held"
        elif verdict == "hook" and not happened:
            self.log.not_happened.add(key)
            self._move(key, CallState.REQUESTED, commit=True)
            self.tasks[key] = Task("run")
        else:
            text = "it happened" if verdict == "hook" else "nobody knows"
            self._finish(key, element(key, text), token=None, sources=(CallState.INDETERMINATE,))
            self._ended(key)

    # --- results --------------------------------------------------------------------------------------------------

    def _submit(self, key: CallKey, *, again: bool) -> None:
        record = self.record(key)
        assert record.outcome is not None, "P3: nothing to send"
        if again:
            lost = self.server.losses[key] + (record.substitute is not None)
            assert record.submit_epoch < lost, "a new epoch for a result that was not lost"
        if again or record.state.closed:
            epoch = record.submit_epoch + again
            self._move(key, CallState.FINISHED, submit_epoch=epoch, submit_status="none")
        if key not in self.ready and not any(key in batch for batch in self.batches):
            self.ready.append(key)

    def _sendable(self, key: CallKey) -> bool:
        record = self.record(key)
        return record.state in SENDABLE and record.submit_status != "accepted"

    def _settle(self, key: CallKey) -> None:
        taken = self.server.results.get(key)
        if taken is None:
            self._move(key, CallState.OBSOLETE)
        else:
            self._move(key, CallState.ACKED if taken == self.record(key).payload else CallState.SUPERSEDED)

    def begin_post(self, choice: int) -> None:
        """Send what is ready (0), or a batch that waits."""
        self.ready = [key for key in self.ready if self._sendable(key)]
        self.batches = [kept for batch in self.batches if (kept := tuple(filter(self._sendable, batch)))]
        if self.ready and choice % (len(self.batches) + 1) == 0:
            members = take([self.record(key) for key in self.ready])
            self.ready = [key for key in self.ready if key not in members]
        elif self.batches:
            members = self.batches.pop(choice % len(self.batches))
        else:
            return
        records = [self.record(key) for key in members]
        for record in records:
            self._check_bytes(record)
            self._keep(record, self.clock.tick())
        self.post = Post(
            members,
            inputs.body(record.payload or b"" for record in records),
            inputs.results_key((*_parts(record.key), record.submit_epoch) for record in records),
        )
        # Until the answer is there the members count as waiting, so that nobody sends them a second time.
        self.batches.append(members)

    def _check_bytes(self, record: CallRecord) -> None:
        stored = self.store.rows[record.key]
        assert record.payload is not None
        assert stored.payload == record.payload, "P3: sent before it was stored"
        name = (record.key, record.substitute is not None)
        assert self.log.sent.setdefault(name, record.payload) == record.payload, "P3: a repeat with other bytes"

    def take_answer(self) -> None:
        """Perform what the real table reads in the answer to the POST."""
        assert self.post is not None
        assert self.answer is not None
        members, (error,) = self.post.members, self.answer
        self.post = self.answer = None
        self.batches.remove(members)
        match interpret(error, members=len(members), call_id=members[0].call_id):
            case Answer.ACCEPTED:
                self._mark(members, "accepted")
            case Answer.WAIT:
                self._mark(members, "ambiguous")
                self.batches.append(members)
            case Answer.SPLIT:
                self.batches += [(member,) for member in members]
            case Answer.RACE | Answer.READ:
                self.wants_to_read = True
                self.batches.append(members)
            case Answer.SUBSTITUTE:
                self._substitute(members[0])
            case Answer.FORBIDDEN:
                raise AssertionError("nobody refuses our credentials here")

    def _mark(self, members: tuple[CallKey, ...], status: SubmitStatus) -> None:
        for key in members:
            if self.record(key).state in SENDABLE:
                self._move(key, CallState.SUBMITTED, submit_status=status, submitted_at=self.clock.now)

    def _substitute(self, key: CallKey) -> None:
        record = self.record(key)
        if record.state not in SENDABLE:
            return
        assert record.substitute is None, "P2: a second substitute"
        substitute = inputs.tool_result(
            turn_id=key.turn_id, call_id=key.call_id, success=False, output=None, error="refused"
        )
        self.store.queue(PutSubstitute(key=key, element=substitute, reason="HTTP 413", at=self.clock.now))
        self.store.commit()
        self._keep(self.store.rows[key], self.clock.tick())
        self.ready.append(key)


def _parts(key: CallKey) -> tuple[str, str, str]:
    return key.session_id, key.turn_id, key.call_id
