"""Bring one call to an outcome and persist it: T1, the handler, T2, in a task of its own.

These tasks belong to the runtime, not to a session's actor: an actor that crashes leaves them alone, and finds what
they stored in the journal. Each ends with a content-free hint to the actor; a lost hint loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from answerback.actors.approvals import gate
from answerback.actors.job import Job, Queue, log_ids
from answerback.actors.journal import Checkpoints, Journal
from answerback.actors.messages import CallFinished
from answerback.actors.resolve import Resolver
from answerback.actors.settings import CallSettings
from answerback.errors import ArgumentsError, StoreError
from answerback.handlers import outcome as texts
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.context import ToolContext
from answerback.handlers.execute import Execution, Executor, Interrupted, RetryRequest
from answerback.handlers.policy import Retry, Verdict
from answerback.handlers.registry import Handlers
from answerback.handlers.tool import Tool
from answerback.model import CallKey, CallRecord, CallState, OnInterrupted, Outcome, SessionPowers
from answerback.store.base import Store

logger = logging.getLogger("answerback.calls")

AnyTool = Tool[..., Any]
STARTABLE = (CallState.REQUESTED,)
UNFINISHED = (CallState.STARTED, CallState.INDETERMINATE)


class CallRunner:
    """Runs the calls of all sessions, within the concurrency limits."""

    def __init__(
        self,
        *,
        group: TaskGroup,
        store: Store,
        handlers: Handlers,
        executor: Executor,
        powers: SessionPowers,
        settings: CallSettings,
        now: Callable[[], int],
        escalate: Callable[[StoreError], None],
        deps: Any = None,
    ) -> None:
        self.settings = settings
        self.jobs: dict[CallKey, Job] = {}
        self._group = group
        self._store = store
        self._handlers = handlers
        self._executor = executor
        self._powers = powers
        self._now = now
        self._escalate = escalate
        self._deps = deps
        self._slots = anyio.CapacityLimiter(settings.max_concurrency)
        self._suspects = anyio.CapacityLimiter(1)
        self._tool_slots: dict[str, anyio.CapacityLimiter] = {}
        self._checkpoints = Checkpoints(store, now)
        self._resolver = Resolver(self)
        self.accepting = True
        self.cut_short = 0
        """Started calls whose handler was cancelled because the runtime stopped."""

    def __repr__(self) -> str:
        return f"<CallRunner {len(self.jobs)} calls, {self._slots.borrowed_tokens} running>"

    def run(
        self,
        journal: Journal,
        key: CallKey,
        notify: Callable[[CallFinished], None],
        *,
        declared: frozenset[str] | None,
        crashed: bool = False,
    ) -> None:
        """Start the task that brings a requested or interrupted call to an outcome."""
        if job := self._open(journal, key, notify):
            self._group.start_soon(self._guard, job, lambda: self._attempts(job, declared, crashed=crashed))

    def resolve(self, journal: Journal, key: CallKey, notify: Callable[[CallFinished], None]) -> None:
        """Start the task that decides an INDETERMINATE call."""
        if job := self._open(journal, key, notify):
            self._group.start_soon(self._guard, job, lambda: self._resolve(job))

    def poison(self, journal: Journal, key: CallKey, notify: Callable[[CallFinished], None]) -> None:
        """Answer a call whose process died too often."""
        if job := self._open(journal, key, notify):
            self._group.start_soon(self._guard, job, lambda: self._poison(job))

    def cancel(self, key: CallKey) -> None:
        """One cancel for a call nobody waits for; what it still yields within the grace time is kept."""
        job = self.jobs.get(key)
        if job is not None and not job.unwanted:
            job.interrupt(unwanted=True)

    def stop_all(self) -> None:
        """End every task now: cancel the handlers once, grant them the grace time, mark what is left."""
        for job in list(self.jobs.values()):
            job.interrupt(stopping=True)

    @property
    def entered(self) -> int:
        """How many handler bodies are running."""
        return sum(job.entered for job in self.jobs.values())

    def tool(self, name: str) -> AnyTool | None:
        """Return the tool behind a name."""
        return self._handlers.get(name)

    @property
    def on_interrupted(self) -> OnInterrupted:
        """The policy of tools that have none of their own."""
        return self.settings.on_interrupted

    @property
    def hold_deadline(self) -> float:
        """Seconds a call may stay undecided."""
        return self.settings.hold_deadline

    async def ask(self, tool: AnyTool, bound: BoundArguments, record: CallRecord) -> Verdict[Any]:
        """Ask a tool's verify hook what an interrupted call did."""
        context = self._context(record, await self._store.checkpoints(record.key))
        return await self._executor.ask(tool, bound, context, timeout=self.settings.hook_timeout)

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        return self._now()

    def _open(self, journal: Journal, key: CallKey, notify: Callable[[CallFinished], None]) -> Job | None:
        if key in self.jobs or not self.accepting:
            return None
        job = Job(key, journal, notify, began=self._now())
        self.jobs[key] = job
        return job

    async def _guard(self, job: Job, body: Callable[[], Awaitable[None]]) -> None:
        """Contain a task: whatever goes wrong in it, the call is answered or left visible, and the runtime lives."""
        try:
            await body()
        except StoreError as error:
            self._escalate(error)  # without a journal nothing may run: it is everybody's trouble
            return
        except Exception as error:  # noqa: BLE001 - one call must not take the others with it
            # No traceback: its frames' texts may carry values of the call.
            logger.error("a call's task failed: %s", type(error).__name__, extra=log_ids(job.key))  # noqa: TRY400
            await self._answer_failed(job)
            # Whatever decides next may fail the same way again: once a second then, not in a storm.
            await job.until_interrupted(lambda: anyio.sleep(1.0))
        finally:
            self.jobs.pop(job.key, None)
        job.notify(CallFinished(job.key))

    async def _answer_failed(self, job: Job) -> None:
        """Answer a call that cannot even be started; without this it would be tried again at once, for ever."""
        if self._record(job).state is not CallState.REQUESTED:
            return
        try:
            await self.refuse(job, Outcome(kind="not_started", error="The function could not be started."))
        except StoreError as error:
            self._escalate(error)

    async def _attempts(self, job: Job, declared: frozenset[str] | None, *, crashed: bool) -> None:
        """Validate, queue, start, run, store; again when the handler asked for a retry."""
        record = self._record(job)
        tool = self._handlers.get(record.name)
        if tool is None:
            await self._unhandled(job, record, declared)
            return
        if not await tool.enabled():
            await self.refuse(job, texts.disabled(record.name))
            return
        try:
            bound = tool.bind(job.journal.arguments(record))
        except ArgumentsError as error:
            await self.refuse(job, texts.arguments_rejected(error.text))
            return
        if not await self._may_start(job, tool, bound, record):
            return
        while not await self._attempt(job, tool, bound, crashed=crashed):
            crashed = False

    async def _may_start(self, job: Job, tool: AnyTool, bound: BoundArguments, record: CallRecord) -> bool:
        """Whether the call needs no approval, or has one; a call that was started before had its own then."""
        if record.attempt > 0:
            return True
        passage = await gate(self._store, job, tool, bound, self._context(record, {}))
        job.approved = passage == "approved"
        return passage != "waiting"

    async def _attempt(self, job: Job, tool: AnyTool, bound: BoundArguments, *, crashed: bool) -> bool:
        """Wait for a slot and run one attempt; return False when another one is to follow."""
        record = self._record(job)
        async with Queue(self._limiters(tool, record, crashed=crashed)) as queue:
            entered = await job.until_interrupted(
                lambda: queue.enter(not_before=record.next_at, until=self._until(job, tool, record), now=self._now)
            )
            if entered and queue.entered:
                return await self._started(job, tool, bound, crashed=crashed)
            if entered:
                await self.refuse(job, texts.timed_out(tool, tool.timeout, started=False))
            else:
                self._withdraw(job)
            return True

    def _until(self, job: Job, tool: AnyTool, record: CallRecord) -> int:
        """When a queued call is answered instead of started: it may wait for as long as it may run."""
        return max(job.began, record.next_at or 0) + int(tool.timeout * 1e6)

    def _withdraw(self, job: Job) -> None:
        """Close a call nobody waits for that was never started; a stop leaves it for the next process."""
        record = self._record(job)
        if job.unwanted and record.state is CallState.REQUESTED:
            job.journal.move(job.key, CallState.OBSOLETE, reason="no longer required; it was never started")

    async def _started(self, job: Job, tool: AnyTool, bound: BoundArguments, *, crashed: bool) -> bool:
        """T1, body, T2. Return False when the handler asked to be run again."""
        before = self._record(job)
        now = self._now()
        receipt, record = job.journal.start(
            job.key,
            sources=STARTABLE if before.state is CallState.REQUESTED else UNFINISHED,
            approved=job.approved,
            effects=tool.effects,
            handler_version=tool.handler_version,
            crash_count=before.crash_count + crashed,
            # A restart keeps the deadline; one that passed while nothing ran is given anew.
            deadline=before.deadline if before.deadline and before.deadline > now else now + int(tool.timeout * 1e6),
        )
        # The row is durable before the body is entered: after a crash it says "unknown", never "not started".
        waits = tool.effects == "once" or job.approved
        if waits and set(await receipt.committed()) != {1}:
            await job.journal.refresh([job.key])
            return True
        if job.interrupted:
            # Known never to have been entered: it is as good as never started.
            job.journal.move(job.key, CallState.REQUESTED, reason="stopped before the handler was entered")
            self._withdraw(job)
            return True
        context = self._context(record, await self._store.checkpoints(job.key) if record.attempt > 1 else {})
        execution = self._executor.start(tool, bound, context)
        job.entered = True
        try:
            return await self._ended(job, tool, bound, record, execution)
        finally:
            job.entered = False

    async def _ended(
        self, job: Job, tool: AnyTool, bound: BoundArguments, record: CallRecord, execution: Execution
    ) -> bool:
        remaining = max(0.0, ((record.deadline or self._now()) - self._now()) / 1e6)
        in_time = await job.until_interrupted(lambda: execution.wait(remaining)) and execution.done
        if not in_time:
            await self._cut(job, execution, record)
            if not job.interrupted:
                await self._overdue(job, tool, bound, record, execution)
                return True
        result = execution.result if execution.done else Interrupted()
        if isinstance(result, Interrupted) and not job.interrupted:
            # Nobody cancelled it: the body cancelled itself, which is a way to fail.
            result = texts.failed(RuntimeError(), tool, texts.new_ref())
        match result:
            case RetryRequest():
                await self._pause(job, tool, record, result)
                return job.interrupted
            case Outcome():
                stored = await job.journal.finish(job.key, result, token=record.token, sources=UNFINISHED)
                if not stored:
                    job.journal.late(job.key, record.attempt, result)
            case _:
                await self._cut_off(job, tool)
        return True

    async def _pause(self, job: Job, tool: AnyTool, record: CallRecord, request: RetryRequest) -> None:
        """Put a call back to REQUESTED with the time of its next attempt, durably."""
        policy = tool.retry or Retry()
        pause = request.after if request.after is not None else policy.pause(record.attempt)
        receipt = job.journal.move(
            job.key,
            CallState.REQUESTED,
            lazy=False,
            reason="the handler asked for a retry",
            next_at=self._now() + int(pause * 1e6),
            deadline=None,
        )
        await receipt.committed()

    async def _cut(self, job: Job, execution: Execution, record: CallRecord) -> None:
        """Cancel a body once and wait the grace time; what it returns after that is recorded as late."""
        execution.cancel()
        if not execution.is_thread or job.interrupted:
            with anyio.CancelScope(shield=True):
                await execution.wait(self.settings.cancel_grace)
        if not execution.done:
            execution.abandon(lambda outcome: job.journal.late(job.key, record.attempt, outcome))

    async def _overdue(
        self, job: Job, tool: AnyTool, bound: BoundArguments, record: CallRecord, execution: Execution
    ) -> None:
        """Answer a call whose time is over. A value that came after the cancel is kept as late, and never sent."""
        if execution.done and isinstance(execution.result, Outcome):
            job.journal.late(job.key, record.attempt, execution.result)
        if tool.effects == "once" and tool.has_verify and execution.started:
            await self._resolver.overdue(job, tool, bound, record)
            return
        outcome = texts.timed_out(tool, tool.timeout, started=execution.started)
        await job.journal.finish(job.key, outcome, token=record.token, sources=UNFINISHED, reason="timed out")

    async def _cut_off(self, job: Job, tool: AnyTool) -> None:
        """Mark a call whose handler was cancelled without an outcome."""
        current = self._record(job)
        if current.state is not CallState.STARTED:
            return
        if job.unwanted and not job.stopping:
            job.journal.move(
                job.key, CallState.OBSOLETE_UNKNOWN, reason="its turn ended while the handler ran; it was cancelled"
            )
            return
        self.cut_short += 1
        if tool.effects == "once":
            job.journal.move(job.key, CallState.INDETERMINATE, reason="the runtime stopped while the handler ran")
        else:
            job.journal.move(job.key, CallState.REQUESTED, reason="the runtime stopped; it may run again freely")

    async def _unhandled(self, job: Job, record: CallRecord, declared: frozenset[str] | None) -> None:
        """A name nobody handles here: answer it when it is nobody's, else hold it for its owner, with a deadline."""
        owned = declared is not None and record.name in declared
        if owned or self.settings.unhandled == "hold":
            until = record.hold_until or self._now() + int(self.settings.hold_deadline * 1e6)
            job.journal.move(job.key, CallState.REQUESTED, hold_until=until, reason="no handler for it here")
            logger.error(
                "no handler here for a function the session declares; held until its owner or the deadline answers",
                extra=log_ids(job.key),
            )
            if await self.hold(job, until):
                self._withdraw(job)
                return
        await self.refuse(job, texts.unknown_tool(record.name, [tool.name for tool in self._handlers]))

    async def hold(self, job: Job, until: int) -> bool:
        """Wait for a decision; return True when one came (or the wait was interrupted) before `until`."""
        seconds = max(0.0, (until - self._now()) / 1e6)
        with anyio.move_on_after(seconds) as waiting:
            await job.until_interrupted(job.decided.wait)
        return not waiting.cancelled_caught

    async def refuse(self, job: Job, outcome: Outcome) -> None:
        """Store an outcome for a call that was never started."""
        await job.journal.finish(job.key, outcome, token=None, sources=STARTABLE)

    async def _resolve(self, job: Job) -> None:
        if await self._resolver.resolve(job):
            await self._attempts(job, None, crashed=False)

    async def _poison(self, job: Job) -> None:
        record = self._record(job)
        outcome = texts.poisoned(record, record.crash_count + 1)
        await job.journal.finish(job.key, outcome, token=record.token, sources=UNFINISHED, reason="poisonous")

    def _record(self, job: Job) -> CallRecord:
        record = job.journal.get(job.key)
        if record is None:
            raise LookupError(f"call {job.key} left the journal while it ran")
        return record

    def _context(self, record: CallRecord, checkpoints: dict[str, bytes]) -> ToolContext[Any]:
        """Build what a handler or a verify hook sees of its call."""
        deadline = datetime.fromtimestamp(record.deadline / 1e6, UTC) if record.deadline is not None else None
        return ToolContext(
            record.key,
            name=record.name,
            journal=self._checkpoints,
            powers=self._powers,
            attempt=record.attempt,
            deadline=deadline,
            deps=self._deps,
            checkpoints={name: msgspec.json.decode(value) for name, value in checkpoints.items()},
        )

    def _limiters(self, tool: AnyTool, record: CallRecord, *, crashed: bool) -> list[anyio.CapacityLimiter]:
        """Return what a call must get a place in, in the order to take them: rarest last would starve the others."""
        chosen: list[anyio.CapacityLimiter] = []
        if crashed or record.crash_count:
            # Whoever was running when a process died is a suspect: one at a time, so that the culprit is known.
            chosen.append(self._suspects)
        if tool.max_concurrency is not None:
            chosen.append(self._tool_slots.setdefault(tool.name, anyio.CapacityLimiter(tool.max_concurrency)))
        return [*chosen, self._slots]
