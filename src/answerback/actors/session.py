"""The actor of one session: a mailbox loop that performs what the pure core asks for."""

from __future__ import annotations

import logging

import anyio
import msgspec
from anyio.abc import TaskGroup

from answerback.actors import reconcile as table
from answerback.actors.backoff import Backoff
from answerback.actors.job import log_ids
from answerback.actors.journal import encode
from answerback.actors.live import LiveSession
from answerback.actors.messages import (
    CallFinished,
    Effect,
    Fetch,
    Fetched,
    FetchRefused,
    Message,
    OutboxChanged,
    OutputSeen,
    Publish,
    Reading,
    Reconcile,
    ReopenStream,
    ReportAction,
    StopFollowing,
    TurnsChanged,
)
from answerback.actors.outbox import Outbox
from answerback.actors.pulse import Pulse
from answerback.actors.settle import settled_as
from answerback.actors.shared import Shared
from answerback.actors.stream import StreamFollower
from answerback.actors.submit import Submitter
from answerback.errors import ApiError
from answerback.model import CallKey, CallRecord, CallState, Outcome
from answerback.store.base import UpdateSession

logger = logging.getLogger("answerback.session")


class SessionActor:
    """Follows one session until it ends. Any exception that leaves `run` is a crash; the supervisor restarts it."""

    def __init__(self, live: LiveSession, shared: Shared) -> None:
        self.live = live
        self._shared = shared
        self._journal = live.journal
        self._mailbox = live.mailbox
        self._backoff = Backoff()
        self._fetch = anyio.Event()
        self._match = anyio.Event()
        self._settling: set[CallKey] = set()
        self._group: TaskGroup | None = None
        self._follower = StreamFollower(
            live.session_id,
            api=shared.api,
            mailbox=live.mailbox,
            idle_timeout=shared.settings.stream_idle_timeout,
            slots=shared.stream_slots,
            rng=shared.rng,
            wanted=lambda: live.watched,
        )
        self._pulse = Pulse(
            live,
            settings=shared.settings,
            streaming=lambda: self.streaming,
            passivate=shared.passivate,
            rng=shared.rng,
        )
        self._submitter = Submitter(
            journal=live.journal,
            api=shared.api,
            mailbox=live.mailbox,
            gate=shared.post_gate,
            rng=shared.rng,
            now=shared.now,
            refused_text=_refused_element,
            observer=shared.observer,
        )
        self._outbox = Outbox(
            live, store=shared.store, api=shared.api, gate=shared.post_gate, rng=shared.rng, now=shared.now
        )

    def __repr__(self) -> str:
        running = sum(key in self._shared.runner.jobs for key in self._journal.entries)
        status = self.live.state.status or "unread"
        return f"<SessionActor {self.live.session_id} {status}, {running} running, {len(self._mailbox)} queued>"

    @property
    def streaming(self) -> bool:
        """Whether an event stream of the session is open."""
        return self._follower.live

    async def run(self) -> None:
        """Follow the session; return when it has ended for us."""
        await self._journal.load()
        async with anyio.create_task_group() as group:
            self._group = group
            for task in (self._follower.run, self._submitter.run, self._outbox.run):
                group.start_soon(task)
            for task in (self._fetch_loop, self._match_loop, self._poll, self._pulse.passivate):
                group.start_soon(task)
            await self._loop()

    async def _loop(self) -> None:
        while True:
            message = await self._mailbox.get()
            for effect in self.live.state.apply(message):
                await self._perform(effect)
            if not self.live.state.idle:
                self.live.idle_root = None
            await self._hints(message)
            self._pulse.beat()
            self.live.notify()

    async def _hints(self, message: Message) -> None:
        """React to what the pure core leaves to the shell: ended calls and new inputs."""
        match message:
            case OutboxChanged():
                self._outbox.wake()
            case CallFinished(key):
                await self._call_finished(key)
            case _:
                pass

    async def _call_finished(self, key: CallKey) -> None:
        """Look at an ended call again, with the newest list; when that does not name it, a new one must be read."""
        asked = self.live.state.asked
        if key in asked:
            await self._reconcile(Reading({key: asked[key]}))
        elif key in self._journal.entries:
            self._fetch.set()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Fetch():
                self._fetch.set()
            case Reconcile(reading):
                await self._reconcile(reading)
            case OutputSeen(key):
                self._output_seen(key)
            case ReopenStream():
                self._follower.reopen()
            case Publish(event):
                self.live.publish(event)
                self._shared.observer.frame(self.live.session_id, event.type, event.turn_id, over=event.ends_turn)
            case TurnsChanged():
                self._match.set()
            case ReportAction(kind):
                logger.warning(
                    "the session waits for an action of type %s, which the application must answer",
                    kind,
                    extra={"session_id": self.live.session_id},
                )
            case StopFollowing():
                await self._stop(effect)

    # --- reconcile ------------------------------------------------------------------------------------------------

    async def _reconcile(self, reading: Reading) -> None:
        reading, entries = self._journal.recognised(reading, await self._journal.lookup(reading.asked))
        for key, asked in reading.asked.items():
            # A frame that came before the first GET did not know which functions are `async`.
            if asked.is_async and key in entries and not entries[key].record.is_async:
                self._journal.note_async(key)
        context = table.Context(
            running=self._shared.runner.jobs.keys(),
            incarnation=self._shared.store.info.incarnation,
            complete=self._shared.store.info.complete,
            now=self._shared.now(),
            rules=self._rules,
            suspicious=self._suspicious(reading),
        )
        for decision in table.reconcile(reading, entries, context):
            await self._decide(decision)
        self._note_first_list(reading)

    def _rules(self, name: str) -> table.Rules:
        tool = self._shared.runner.tool(name)
        if tool is None:
            return table.Rules()
        return table.Rules(
            effects=tool.effects, attempts=1 if tool.effects == "once" else 3, version=tool.handler_version
        )

    def _suspicious(self, reading: Reading) -> frozenset[CallKey]:
        """With `pending="verify"`: what is listed until the first retrieve may have been started by another client."""
        if self.live.record.pending == "verify":
            self.live.first_asked |= reading.asked.keys()
        return self.live.first_asked

    def _note_first_list(self, reading: Reading) -> None:
        """Keep that the first list was seen: what comes later is ours, also after a rest or a restart."""
        if self.live.record.pending == "verify" and reading.sent_at is not None:
            changes = {"pending": "run", "updated_at": self._shared.now()}
            self._shared.store.write(UpdateSession(local_id=self.live.record.local_id, changes=changes), lazy=True)
            self.live.record = msgspec.structs.replace(self.live.record, **changes)

    async def _decide(self, decision: table.Decision) -> None:
        match decision:
            case table.Observe(key, asked):
                self._journal.observe(key, asked, state=CallState.REQUESTED, reason=None)
                self._run(key)
            case table.ObserveInterrupted(key, asked):
                reason = "it may have been started before: the store is not complete, or another client was there"
                self._journal.observe(key, asked, state=CallState.INDETERMINATE, reason=reason)
                self._resolve(key)
            case table.Run(key):
                self._run(key)
            case table.Rerun(key, crashed):
                self._run(key, crashed=crashed)
            case table.Poison(key):
                self._shared.runner.poison(self._journal, key, self._mailbox.tell)
            case table.Interrupt(key):
                record = self._journal.get(key)
                crashes = (record.crash_count if record else 0) + 1
                reason = "its process ended between start and result"
                self._journal.move(key, CallState.INDETERMINATE, reason=reason, crash_count=crashes)
                self._resolve(key)
            case table.Resolve(key):
                self._resolve(key)
            case table.Submit(key, again):
                self._submit(key, again=again)
            case table.Cancel(key):
                self._shared.runner.cancel(key)
            case table.Settle(key):
                self._settle(key)
            case table.Close(key, target, reason):
                self._journal.move(key, target, reason=reason)
            case table.Reopen(key, target):
                self._journal.move(key, target, reason="required again", closed_at=None)
                (self._resolve if target is CallState.INDETERMINATE else self._run)(key)
            case table.Conflict(key):
                logger.error("one call id came with other arguments", extra=log_ids(key))
                reason = f"call {key.call_id} came again with other arguments"
                await self._stop(StopFollowing("quarantined", reason))
            case table.LookAgain(_, at):
                self._look_again(at)

    def _run(self, key: CallKey, *, crashed: bool = False) -> None:
        declared = self.live.state.declared
        record = self._journal.get(key)
        if declared is None and record is not None and self._shared.runner.tool(record.name) is None:
            # Whether the name is anybody's at all is only known from a retrieve; it comes back here.
            self._fetch.set()
            return
        self._shared.runner.run(self._journal, key, self._mailbox.tell, declared=declared, crashed=crashed)

    def _resolve(self, key: CallKey) -> None:
        self._shared.runner.resolve(self._journal, key, self._mailbox.tell)

    def _submit(self, key: CallKey, *, again: bool) -> None:
        record = self._journal.get(key)
        if record is None:
            return
        if again or record.state.closed:
            # The same bytes under a new key: the server lost what it had accepted. Never run again.
            self._shared.observer.resent(key, "required_again")
            self._journal.move(
                key,
                CallState.FINISHED,
                reason="required again; the stored bytes are sent again",
                submit_epoch=record.submit_epoch + (1 if again else 0),
                submit_status="none",
                closed_at=None,
            )
        self._submitter.add(key)

    def _output_seen(self, key: CallKey) -> None:
        """Close a call whose accepted result the server published."""
        record = self._journal.get(key)
        if record is not None and record.state is CallState.SUBMITTED and record.submit_status == "accepted":
            self._journal.move(key, CallState.ACKED, reason="its output item was seen")

    def _look_again(self, at: int | None) -> None:
        if at is None:
            self._fetch.set()
            return
        assert self._group is not None
        self._group.start_soon(self._fetch_at, at)

    async def _fetch_at(self, at: int) -> None:
        await anyio.sleep(max(0.0, (at - self._shared.now()) / 1e6))
        self._fetch.set()

    # --- settle: what became of a result that is no longer required ---------------------------------------------------

    def _settle(self, key: CallKey) -> None:
        if key not in self._settling:
            assert self._group is not None
            self._settling.add(key)
            self._group.start_soon(self._settle_one, key)

    async def _settle_one(self, key: CallKey) -> None:
        """Ask the turn's items whether the server has our output, another one, or none."""
        try:
            items = await self._shared.api.turn_items(key.session_id, key.turn_id)
        except ApiError as error:
            if error.status != 404:
                await anyio.sleep(self._backoff.pause(1, self._shared.rng))
                self._fetch.set()
                return
            items = []
        finally:
            self._settling.discard(key)
        row = self._journal.get(key)
        record = self._journal.revealed(row) if row is not None else None
        if record is not None and record.state in {CallState.FINISHED, CallState.SUBMITTED}:
            target, reason = settled_as(record, items)
            self._journal.move(key, target, reason=reason)
            self.live.notify()

    # --- reading the session ------------------------------------------------------------------------------------------

    async def _fetch_loop(self) -> None:
        """Retrieve when asked; one request at a time, the last one always sent after the last wish."""
        failures = 0
        while True:
            await self._fetch.wait()
            self._fetch = anyio.Event()
            sent_at = self._journal.tick()
            try:
                session = await self._shared.api.retrieve(self.live.session_id)
            except ApiError as error:
                if error.status in {401, 403, 404}:
                    self._mailbox.tell(FetchRefused(error.status))
                    continue
                failures += 1
                self._fetch.set()
                await anyio.sleep(error.retry_after or self._backoff.pause(failures, self._shared.rng))
                continue
            failures = 0
            self._mailbox.tell(Fetched(session, sent_at))

    async def _match_loop(self) -> None:
        """Match inputs with turns when something may have ended."""
        failures = 0
        while True:
            await self._match.wait()
            self._match = anyio.Event()
            try:
                again = await self._outbox.match_turns()
            except ApiError as error:
                failures += 1
                self._match.set()
                await anyio.sleep(error.retry_after or self._backoff.pause(failures, self._shared.rng))
                continue
            failures = 0
            if again is not None:
                self._look_again(self._shared.now() + int(again * 1e6))
            self.live.notify()

    async def _poll(self) -> None:
        """Read the session by the clock; at once when no stream is about to."""
        slots = self._shared.stream_slots
        await self._pulse.poll(first_look=slots is None or slots.available_tokens < 1)

    async def _stop(self, stop: StopFollowing) -> None:
        """Stop following; rows stay, running handlers of a session that is gone are cancelled."""
        changes = {"state": stop.state, "reason": stop.reason, "updated_at": self._shared.now()}
        if stop.lasting:
            changes["active"] = False
            statement = UpdateSession(local_id=self.live.record.local_id, changes=changes)
            await self._shared.store.write(statement).committed()
        self.live.record = msgspec.structs.replace(self.live.record, **changes)
        logger.error("stopped following a session: %s", stop.reason, extra={"session_id": self.live.session_id})
        if stop.state in {"gone", "failed"}:
            for key in [key for key in self._shared.runner.jobs if key.session_id == self.live.session_id]:
                self._shared.runner.cancel(key)
        self.live.close_subscribers()
        self.live.notify()
        self._shared.stop(self.live.session_id)


def _refused_element(record: CallRecord, error: ApiError) -> bytes:
    """Build the substitute of a result the API refused: the reason and the size, nothing of the result itself."""
    code = error.code or f"HTTP {error.status}"
    what = "The function ran, but its result" if record.outcome_kind == "ok" else "The function's answer"
    text = f"{what} ({len(record.outcome or b'')} bytes) was refused by the API: {code}."
    return encode(record.key, Outcome(kind="failed", error=text))
