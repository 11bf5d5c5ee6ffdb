"""Runs turns: asks the model for steps and performs each on the session, committing as it goes."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import anyio
import anyio.lowlevel
import msgspec

from answerback.harness import calls as calls_of
from answerback.harness import output
from answerback.harness.clock import Clock
from answerback.harness.frames import Frame
from answerback.harness.models.base import Model, ModelRequest, Result
from answerback.harness.models.steps import Call, Calls, Fail, FailSession, Reason, Say, Sleep, Step
from answerback.harness.randomness import Randomness
from answerback.harness.records import Call as CallRecord
from answerback.harness.records import Turn
from answerback.harness.state import SessionState

logger = logging.getLogger("answerback.harness.turns")


class Commit(Protocol):
    """Writes what changed in a session, then publishes the frames; returns when both are done."""

    async def __call__(self, session: SessionState, frames: Sequence[Frame], /) -> None:
        """Commit and publish."""
        ...


class TurnRunner:
    """Run the turns of all sessions, one task a turn."""

    def __init__(self, *, clock: Clock, randomness: Randomness, commit: Commit, model: Model) -> None:
        self.model = model
        self._clock = clock
        self._randomness = randomness
        self._commit = commit
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._waiters: dict[str, anyio.Event] = {}

    def __repr__(self) -> str:
        return f"<TurnRunner {len(self._scopes)} running, {len(self._waiters)} waiting for results>"

    def wake(self, session_id: str) -> None:
        """Let the turn of a session look again whether its results are in."""
        waiter = self._waiters.pop(session_id, None)
        if waiter is not None:
            waiter.set()

    def stop(self, session_id: str) -> None:
        """Stop working on a session's turn, which has been ended already."""
        scope = self._scopes.get(session_id)
        if scope is not None:
            scope.cancel()

    async def run(self, session: SessionState) -> None:
        """Run the session's turn to its end, from the step it has reached."""
        turn = session.active
        if turn is None:
            return
        with anyio.CancelScope() as scope:
            self._scopes[session.id] = scope
            try:
                await self._play(session, turn)
            except Exception:
                logger.exception("the model failed", extra={"session_id": session.id, "turn_id": turn.id})
                if session.active is turn:
                    await self._commit(session, session.fail(turn, code="internal_error", message="The model failed."))
            finally:
                if self._scopes.get(session.id) is scope:
                    del self._scopes[session.id]
                self._waiters.pop(session.id, None)

    async def _play(self, session: SessionState, turn: Turn) -> None:
        request = ModelRequest(session=session.snapshot(), turn=turn.number, input=turn.input, memory=turn.memory)
        done = turn.cursor
        if cut := output.drop_unfinished(session, turn):
            await self._commit(session, cut)
        steps = self.model(request)
        # The seam asks for an iterator; what is written with `async def` and `yield` is a generator and wants closing.
        async with aclosing(cast("AsyncGenerator[Step]", steps)):
            step = await anext(steps, None)
            number = 0
            while step is not None and session.active is turn:
                following: Step | None = None
                peeked = isinstance(step, Say) and step.phase is None
                if isinstance(step, Say) and step.phase is None:
                    # The last message of a turn is its final answer, so one step has to be known ahead.
                    following = await anext(steps, None)
                    step = Say(step.text, "commentary" if following is not None else "final_answer")
                if number >= done:
                    await self._perform(session, turn, step)
                request.results.extend(self._results(session, turn, number))
                self._refresh(session, turn, request.results)
                request.input = turn.input
                number += 1
                step = following if peeked else await anext(steps, None)
        if session.active is turn:
            await self._commit(session, session.complete(turn))

    async def _perform(self, session: SessionState, turn: Turn, step: Step) -> None:
        match step:
            case Say(text, phase):
                await self._say(session, turn, text, phase or "final_answer")
            case Reason(text):
                frames = output.reasoning(session, turn, text)
                session.advance(turn)
                await self._commit(session, frames)
            case Call():
                await self._call(session, turn, (step,))
            case Calls(calls):
                await self._call(session, turn, calls)
            case Sleep(seconds):
                await self._clock.sleep(seconds)
                session.advance(turn)
                await self._commit(session, [])
            case Fail(code, message):
                await self._commit(session, session.fail(turn, code=code, message=message))
            case FailSession(message):
                await self._commit(session, session.fail_session(message))
        # In memory a commit does not wait, so give the readers of the stream their turn.
        await anyio.lowlevel.checkpoint()

    async def _say(self, session: SessionState, turn: Turn, text: str, phase: str) -> None:
        message = output.MessageOutput(session, turn, text=text, phase=phase)
        frames = message.open()
        delay = session.knobs.delta_delay
        for piece in output.pieces(text, session.knobs.delta_size):
            if delay > 0:
                await self._commit(session, frames)
                await self._clock.sleep(delay)
                frames = []
            frames += message.piece(piece)
        frames += message.close()
        session.advance(turn)
        await self._commit(session, frames)

    async def _call(self, session: SessionState, turn: Turn, steps: Sequence[Call]) -> None:
        step = turn.cursor
        together = session.knobs.parallel_calls == "together"
        # After a restart calls may be there already, announced, pending or answered.
        made = len(calls_of.step_calls(session, turn, step))
        await self._register(session, turn, calls_of.step_calls(session, turn, step), [])
        missing = steps[made:]
        for group in [missing] if together else [(one,) for one in missing]:
            known = len(calls_of.step_calls(session, turn, step))
            frames = calls_of.announce(session, turn, group, randomness=self._randomness)
            await self._register(session, turn, calls_of.step_calls(session, turn, step)[known:], frames)
        await self._until_answered(session, step)
        calls = calls_of.step_calls(session, turn, step)
        session.advance(turn)
        blocking = [call for call in calls if call.blocking]
        await self._commit(session, calls_of.finish(session, blocking))

    async def _register(
        self, session: SessionState, turn: Turn, calls: Sequence[CallRecord], frames: list[Frame]
    ) -> None:
        gap = session.knobs.registration_gap
        if gap > 0 and frames:
            await self._commit(session, frames)
            await self._clock.sleep(gap)
            frames = []
        if calls:
            await self._commit(session, [*frames, *calls_of.register(session, turn, calls)])

    async def _until_answered(self, session: SessionState, step: int) -> None:
        while session.awaits(step):
            waiter = self._waiters[session.id] = anyio.Event()
            await waiter.wait()

    def _results(self, session: SessionState, turn: Turn, step: int) -> list[Result]:
        return [Result(name=call.name, call_id=call.call_id) for call in calls_of.step_calls(session, turn, step)]

    def _refresh(self, session: SessionState, turn: Turn, results: Sequence[Result]) -> None:
        for known in results:
            given = session.calls[turn.id, known.call_id].result
            if given is not None and known.success is None:
                known.success, known.error = given["success"], given["error"]
                known.output = _parsed(given["output"])


def _parsed(value: Any) -> Any:
    """Parse an output that is JSON text; leave any other as it is."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
