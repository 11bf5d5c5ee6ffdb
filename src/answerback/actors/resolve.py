"""Decide a call nobody knows the outcome of: ask its verify hook, then follow its policy; never guess.

A hook is not asked before `started_at + settle`: what was in flight at the kill may still land, and an early "it did
not happen" would be a second effect. Until a deadline it is asked again while it does not know; then the model is
told so, or a person decided.
"""

from __future__ import annotations

import logging
import random
from typing import Any, Protocol, cast

from answerback.actors.backoff import Backoff
from answerback.actors.job import Job, log_ids
from answerback.errors import ArgumentsError, OutputError
from answerback.handlers import outcome as texts
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.policy import Failed, Happened, NotHappened, Unknown, Verdict
from answerback.handlers.tool import Tool
from answerback.model import CallRecord, CallState, OnInterrupted, Outcome

logger = logging.getLogger("answerback.resolve")


POISON_CRASHES = 3
"""Process deaths after which a call is not started again, although its hook says that nothing happened."""


class Questions(Protocol):
    """What a resolver needs of the runner whose calls it decides."""

    @property
    def on_interrupted(self) -> OnInterrupted:
        """The policy of tools that have none of their own."""
        ...

    @property
    def hold_deadline(self) -> float:
        """Seconds a call may stay undecided."""
        ...

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        ...

    def tool(self, name: str) -> Tool[..., Any] | None:
        """Return the tool behind a name."""
        ...

    async def ask(self, tool: Tool[..., Any], bound: BoundArguments, record: CallRecord) -> Verdict[Any]:
        """Ask the tool's verify hook once."""
        ...

    async def hold(self, job: Job, until: int) -> bool:
        """Wait for a decision; return True when one came (or the wait was interrupted) before `until`."""
        ...


class Resolver:
    """Resolves INDETERMINATE calls and overdue `once` calls, inside the task of the call."""

    def __init__(self, runner: Questions) -> None:
        self._runner = runner
        self._backoff = Backoff(initial=1.0, maximum=30.0)
        self._rng = random.Random()

    def __repr__(self) -> str:
        return "<Resolver>"

    async def resolve(self, job: Job) -> bool:
        """Bring an INDETERMINATE call on; return True when it did not happen and is to be run (again)."""
        record = job.journal.get(job.key)
        if record is None or record.state is not CallState.INDETERMINATE:
            return False
        tool = self._runner.tool(record.name)
        policy = (tool.on_interrupted if tool else None) or self._runner.on_interrupted
        bound = _bind(tool, job, record)
        asks = tool is not None and bound is not None and tool.has_verify
        until = self._hold(job, record, announce=policy == "hold")
        if asks:
            assert tool is not None
            assert bound is not None
            verdict = await self._ask_until(job, tool, bound, record, until)
        elif policy == "hold":
            verdict = Unknown()
            if await self._runner.hold(job, until):
                return False
        else:
            verdict = Unknown()
        if job.interrupted or job.decided.is_set():
            return False
        if isinstance(verdict, NotHappened) and record.crash_count >= POISON_CRASHES:
            outcome = texts.poisoned(record, record.crash_count)
            await job.journal.finish(
                job.key, outcome, token=None, sources=(CallState.INDETERMINATE,), reason="poisonous"
            )
            return False
        if isinstance(verdict, NotHappened):
            await job.journal.move(
                job.key,
                CallState.REQUESTED,
                lazy=False,
                reason="verify: it did not happen",
                hold_until=None,
                deadline=None,
            ).committed()
            return True
        outcome = verdict_outcome(tool, verdict) or texts.interrupted(record)
        await job.journal.finish(
            job.key, outcome, token=None, sources=(CallState.INDETERMINATE,), reason=f"verify: {type(verdict).__name__}"
        )
        return False

    async def overdue(self, job: Job, tool: Tool[..., Any], bound: BoundArguments, record: CallRecord) -> None:
        """Answer a `once` call that ran out of time: its hook first, the honest "unknown" if that knows nothing."""
        until = self._runner.now() + int(self._runner.hold_deadline * 1e6)
        verdict = await self._ask_until(job, tool, bound, record, until)
        if job.interrupted or job.decided.is_set():
            return
        if isinstance(verdict, NotHappened):
            text = f"Tool '{tool.name}' timed out after {tool.timeout:g} seconds and did not take effect."
            outcome = Outcome(kind="failed", error=text)
        else:
            outcome = verdict_outcome(tool, verdict) or texts.timed_out(tool, tool.timeout, started=True)
        await job.journal.finish(
            job.key,
            outcome,
            token=record.token,
            sources=(CallState.STARTED, CallState.INDETERMINATE),
            reason=f"timed out; verify: {type(verdict).__name__}",
        )

    def _hold(self, job: Job, record: CallRecord, *, announce: bool) -> int:
        """Note until when the call may stay undecided, and print the way out once."""
        until = record.hold_until
        if until is None:
            until = self._runner.now() + int(self._runner.hold_deadline * 1e6)
            job.journal.move(job.key, CallState.INDETERMINATE, hold_until=until)
        if announce:
            logger.warning(
                "a call was interrupted and nobody knows its outcome; decide it: "
                "answerback decide %s --happened|--not-happened|--unknown",
                record.public_id[:12],
                extra=log_ids(record.key),
            )
        return until

    async def _ask_until(
        self, job: Job, tool: Tool[..., Any], bound: BoundArguments, record: CallRecord, until: int
    ) -> Verdict[Any]:
        """Ask the hook from `started_at + settle` on, again with growing pauses, until it knows or time is over."""
        started = record.started_at if record.started_at is not None else record.observed_at
        ask_at = max(started + int(tool.settle * 1e6), record.next_at or 0)
        asked = 0
        while True:
            if await self._runner.hold(job, min(ask_at, until)) or ask_at > until:
                return Unknown()
            verdict = await self._runner.ask(tool, bound, record)
            asked += 1
            if not isinstance(verdict, Unknown):
                return verdict
            pause = int(self._backoff.pause(asked, self._rng) * 1e6)
            ask_at = self._runner.now() + pause
            if ask_at >= until:
                await self._runner.hold(job, until)
                return verdict


def verdict_outcome(tool: Tool[..., Any] | None, verdict: Verdict[Any]) -> Outcome | None:
    """Turn a verdict into the outcome it means; None for Unknown and NotHappened."""
    match verdict:
        case Happened():
            try:
                return tool.encode(verdict.output) if tool is not None else texts.encode(verdict.output)
            except OutputError as error:
                return Outcome(kind="failed", error=f"It happened, but its result cannot be sent: {error.text}")
            except Exception as error:  # noqa: BLE001 - the value is the author's, and so is what its parts raise
                logger.error("a verdict's output could not be read: %s", type(error).__name__)  # noqa: TRY400
                return Outcome(kind="failed", error="It happened, but its result cannot be sent.")
        case Failed():
            # The annotation says str; what is sent must be text whatever the hook gave.
            text = verdict.error if isinstance(cast("object", verdict.error), str) else "It failed."
            return Outcome(kind="failed", error=text.encode("utf-8", "replace").decode() or "It failed.")
        case _:
            return None


def _bind(tool: Tool[..., Any] | None, job: Job, record: CallRecord) -> BoundArguments | None:
    if tool is None:
        return None
    try:
        return tool.bind(job.journal.arguments(record))
    except ArgumentsError:
        # The schema changed since: the hook cannot be asked, the call is decided by policy.
        logger.warning(
            "the arguments of an interrupted call do not fit today's schema; its verify hook is not asked",
            extra=log_ids(record.key),
        )
        return None
