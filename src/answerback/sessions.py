"""SessionRef: one session, as an application holds it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from answerback.actors.api import AgentsApi
from answerback.actors.live import LiveSession
from answerback.actors.messages import OutboxChanged, ReadAgain
from answerback.actors.turns import TurnResult, newest_root, result_of
from answerback.errors import ConfigurationError, InputRefusedError, SessionError, UnknownCallError
from answerback.model import CallRecord, CallState, InputRecord
from answerback.store.base import PutInput, Store
from answerback.wire import inputs
from answerback.wire.events import Event

ResultT = TypeVar("ResultT")


class SessionHost(Protocol):
    """What a session ref asks of the runtime it came from."""

    @property
    def store(self) -> Store:
        """The journal."""
        ...

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        ...

    def check_running(self) -> None:
        """Raise when nothing can be asked of the runtime any more."""
        ...

    def peek(self, session_id: str) -> LiveSession | None:
        """Return a session that lives in this process, or None: it is at rest, or ended long ago."""
        ...

    async def awake(self, session_id: str) -> LiveSession:
        """Return a session, bringing it back if it was passivated."""
        ...

    def wake(self, session_id: str) -> None:
        """Read a session now."""
        ...

    async def read(self, request: Callable[[AgentsApi], Awaitable[ResultT]]) -> ResultT:
        """Perform a GET, trying again while it fails in passing."""
        ...

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Perform a POST of inputs until the answer is definite."""
        ...

    async def detach(self, session_id: str) -> None:
        """Stop following a session."""
        ...

    async def calls(
        self, *, session_id: str | None = None, states: Sequence[CallState] | None = None, limit: int = 100
    ) -> list[CallRecord]:
        """Return rows of the journal, newest first."""
        ...

    async def approve(self, call: str, *, by: str | None = None, reason: str | None = None) -> CallRecord:
        """Say yes to a call that waits for an approval."""
        ...

    async def reject(self, call: str, *, reason: str | None = None, by: str | None = None) -> CallRecord:
        """Say no to a call that waits for an approval."""
        ...


class SessionRef:
    """A handle on one session. It never dies: what it is asked, the session's actor does when it can.

    Keeping one costs nothing: a session that was idle for a while is passivated all the same, and comes back for the
    next message, wait or subscription.

    One writer per session is assumed: the service does not say which turn answers which input, so inputs another
    client posts at the same time may be mistaken for yours.

    Attributes:
        id: the session's id.
    """

    def __init__(self, runtime: SessionHost, session_id: str) -> None:
        self.id = session_id
        self._runtime = runtime

    def __repr__(self) -> str:
        live = self._runtime.peek(self.id)
        state = f"{live.record.state}, {live.state.status or 'unread'}" if live is not None else "at rest"
        return f"<SessionRef {self.id} {state}>"

    @property
    def status(self) -> str:
        """The server's last known status: idle, in_progress, requires_action, failed; empty before the first read."""
        live = self._runtime.peek(self.id)
        return live.state.status if live is not None else "idle"

    @property
    def required_actions(self) -> frozenset[str]:
        """Kinds of required actions, other than function calls, that the session waits for right now."""
        live = self._runtime.peek(self.id)
        return live.other_actions if live is not None else frozenset()

    async def send(self, input: str | Sequence[dict[str, Any]], *, key: str | None = None) -> str:  # noqa: A002 - the API's word
        """Queue a message durably and return its key; it is posted when the session can take it.

        Args:
            input: a text, or `input` messages as the Agents API takes them.
            key: makes sending idempotent: a key that was sent before is not sent again, also after a restart.

        Raises:
            ConfigurationError: the input is empty.
            SessionError: the session is gone, failed or set aside.
        """
        self._runtime.check_running()
        if not input:
            raise ConfigurationError("an input must not be empty")
        key = key if key is not None else f"send:{secrets.token_hex(8)}"
        record = InputRecord(session_id=self.id, key=key, element=inputs.message(input), created_at=self._runtime.now())
        async with self._held() as live:
            record = _with_baseline(record, live)
            receipt = self._runtime.store.write(PutInput(record))
            # What is written is sent: a cancelled caller must not leave it behind, where its key keeps it for ever.
            with anyio.CancelScope(shield=True):
                if list(await receipt.committed()) == [1]:
                    live.queue(record)
                    live.mailbox.tell(OutboxChanged())
        return key

    async def run(
        self,
        input: str | Sequence[dict[str, Any]],  # noqa: A002 - the API's word
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> TurnResult:
        """Send a message and wait for its turn: `send` and `wait` in one."""
        await self.send(input, key=key)
        return await self.wait(timeout=timeout)

    async def wait(self, *, timeout: float | None = None) -> TurnResult:
        """Wait until everything sent is answered and the session is idle; return the newest input's turn.

        A failed or cancelled turn is returned with its `status` and `error`; calls that are held keep it waiting.
        Waiting for less than the turn takes cancels nothing.

        Raises:
            TimeoutError: `timeout` seconds passed.
            SessionFailedError, SessionGoneError, SessionQuarantinedError: the session ended, not its turn.
            InputRefusedError: the server refused the newest input for good.
        """
        with anyio.fail_after(timeout):
            async with self._held() as live:
                last = await self._until_idle(live)
                return await self._result(live, last)

    async def cancel(self) -> None:
        """Ask the server to cancel the open turn; returns when that was accepted, which completion may still beat.

        Raises:
            ApiError: the server definitely refused.
        """
        key = inputs.input_key(self.id, f"cancel:{secrets.token_hex(8)}")
        async with self._held() as live:
            await self._runtime.post(self.id, inputs.body([inputs.CANCEL]), key=key)
            live.mailbox.tell(ReadAgain("a cancel was accepted"))

    async def pending_approvals(self) -> list[CallRecord]:
        """Return the session's calls that wait for a person's yes, oldest first, with their exact arguments."""
        states = [CallState.WAITING_APPROVAL]
        return (await self._runtime.calls(session_id=self.id, states=states, limit=1000))[::-1]

    async def approve(self, call: str, *, by: str | None = None, reason: str | None = None) -> CallRecord:
        """Say yes to one of this session's calls; see `Runtime.approve`.

        Raises:
            UnknownCallError: no call, or several, have this name.
            DecisionError: it does not wait for an approval (any more).
        """
        return await self._runtime.approve(await self._own(call), by=by, reason=reason)

    async def reject(self, call: str, *, reason: str | None = None, by: str | None = None) -> CallRecord:
        """Say no to one of this session's calls; the model reads `reason`. Errors as in `approve`."""
        return await self._runtime.reject(await self._own(call), reason=reason, by=by)

    async def _own(self, call: str) -> str:
        """Return the public id of a call of this session: another session's call is not this one's to decide."""
        calls = await self._runtime.calls(session_id=self.id, limit=1000)
        found = [record for record in calls if record.public_id.startswith(call) or record.key.call_id == call]
        if len(found) != 1:
            raise UnknownCallError(f"session {self.id} has {len(found)} calls named {call!r}")
        return found[0].public_id

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[MemoryObjectReceiveStream[Event]]:
        """Subscribe to the session's events, text deltas and handlers' progress included, from now on.

        Events are for showing, not for deciding: a stream may drop some, and a reader that lags loses the oldest.
        """
        live = await self._runtime.awake(self.id)
        async with live.subscribe() as stream:
            yield stream

    def wake(self) -> None:
        """Read the session now: something elsewhere (a webhook, a queue) says that it moved."""
        self._runtime.wake(self.id)

    async def detach(self) -> None:
        """Stop following the session; its turn, and the calls that are running here, go on."""
        await self._runtime.detach(self.id)

    # --- waiting ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self) -> AsyncGenerator[LiveSession]:
        """Keep the session awake for the length of a block; raise if it ended."""
        live = await self._runtime.awake(self.id)
        with live.held():
            self._check(live)
            yield live

    def _check(self, live: LiveSession) -> None:
        self._runtime.check_running()
        ended = live.ended()
        if ended is not None:
            raise ended

    async def _until_idle(self, live: LiveSession) -> InputRecord | None:
        """Return the newest input once nothing is open and a retrieve said idle; None when none was ever sent."""
        while True:
            changed = live.changed
            self._check(live)
            last = live.newest_input
            if last is not None and last.state == "refused":
                raise InputRefusedError(
                    f"the server refused the input ({last.reason}); nothing of it was taken",
                    session_id=self.id,
                    code=last.reason,
                )
            if not live.awaiting and live.state.idle:
                return last
            await changed.wait()

    async def _result(self, live: LiveSession, last: InputRecord | None) -> TurnResult:
        turn_id = last.turn_id if last is not None else None
        if turn_id is None:
            newest = newest_root(await self._runtime.read(lambda api: api.turns(self.id)))
            if newest is None:
                raise SessionError("the session has no turn yet; send() an input first", session_id=self.id)
            turn_id = newest.id
        chosen = turn_id
        known = live.turns.get(chosen)
        turn = (
            known
            if known is not None and known.over
            else await self._runtime.read(lambda api: api.turn(self.id, chosen))
        )
        items = await self._runtime.read(lambda api: api.turn_items(self.id, chosen))
        return result_of(self.id, turn, items, await live.journal.calls())


def _with_baseline(record: InputRecord, live: LiveSession) -> InputRecord:
    """Note the newest root turn in the input's own commit, when the session rests and it is known."""
    if live.awaiting or not live.state.idle or live.idle_root is None:
        return record
    baseline, live.idle_root = live.idle_root.turn_id, None
    return msgspec.structs.replace(record, state="sent", baseline_turn=baseline)
