"""One message in, one reply out: ask the agent, show how it goes, put its questions to a person, deliver the answer.

A place (a thread, a chat) has one session and one message in work at a time; places do not wait for each other.
Every step is noted in the inbox, so a bot that was killed goes on where it was: it asks the agent nothing twice, and
finds the message it was editing. What no bot can know is whether a message it was posting when it was killed arrived:
that one message may appear twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from answerback import (
    ApiError,
    CallRecord,
    CallState,
    DecisionError,
    Runtime,
    SessionError,
    SessionFailedError,
    SessionGoneError,
    SessionQuarantinedError,
    SessionRef,
)
from common.inbox import Inbox, Message
from common.sketch import THINKING, Sketch
from common.splitting import split

logger = logging.getLogger("bots.desk")

ARGUMENTS_SHOWN = 600
QUESTIONS_SHOWN = 5
LONGEST_PAUSE = 30.0
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Question:
    """A call that a person has to approve."""

    call: str
    """Names the call in a decision; 32 characters."""
    text: str


@dataclass(frozen=True)
class View:
    """What a message shows."""

    text: str
    questions: tuple[Question, ...] = ()
    final: bool = False
    """Whether it is a part of the answer, not of the way there."""
    writing: bool = False
    """Whether it is the answer as far as it is written."""


class Busy(Exception):  # noqa: N818 - it is no error: it says "later"
    """Raised by a platform that cannot be reached or wants us to slow down; `after` is in seconds."""

    def __init__(self, after: float | None = None) -> None:
        super().__init__()
        self.after = after


class Refused(Exception):  # noqa: N818 - it is an answer
    """Raised by a platform that will never take this message: the chat is gone, the message was deleted."""


class Platform(Protocol):
    """Where people read: four small methods over the platform's own client."""

    @property
    def limit(self) -> int:
        """The largest size of one message's text."""
        ...

    @property
    def pace(self) -> float:
        """Seconds between two edits of one message that the platform puts up with."""
        ...

    def size(self, text: str) -> int:
        """Count a text as the platform does."""
        ...

    async def post(self, place: str, view: View, *, key: str) -> str:
        """Post a message and return its id; `key` is the same when a message is posted again after a crash."""
        ...

    async def edit(self, place: str, message: str, view: View) -> None:
        """Show something else in a message."""
        ...


class Desk:
    """Where messages are answered.

    Args:
        approvers: the ids of the people who may approve; when it is empty, whoever sees the question may.
    """

    def __init__(
        self,
        runtime: Runtime,
        platform: Platform,
        inbox: Inbox,
        *,
        agent: dict[str, Any],
        approvers: Collection[str] = (),
    ) -> None:
        self._runtime = runtime
        self._platform = platform
        self._inbox = inbox
        self._agent = agent
        self._approvers = frozenset(approvers)
        self._tasks: TaskGroup | None = None
        self._busy: set[str] = set()
        self._look_again: set[str] = set()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Desk]:
        """Answer for the length of a block, what an earlier process left included."""
        async with anyio.create_task_group() as self._tasks:
            for place in await self._inbox.places():
                self._attend(place)
            yield self
            self._tasks.cancel_scope.cancel()

    async def take(self, id: str, place: str, text: str) -> bool:  # noqa: A002 - the platform's word
        """Take a message over from the platform, which may forget it now; return whether it is new."""
        new = await self._inbox.add(id, place, text)
        if new:
            self._attend(place)
        return new

    async def decide(self, place: str, call: str, *, yes: bool, by: str) -> str:
        """Decide a question of a place; return what to tell the person who did."""
        if self._approvers and by not in self._approvers:
            return "You may not decide this."
        # Only among the place's own questions: those of another place are not decided from here.
        found = [one.public_id for one in await self._waiting(place) if one.public_id.startswith(call)]
        if len(found) != 1:
            return "That is not an open question (any more)."
        try:
            decided = await (self._runtime.approve(found[0], by=by) if yes else self._runtime.reject(found[0], by=by))
        except DecisionError:
            return "Somebody else was faster."
        return f"{decided.name}: {'approved' if yes else 'rejected'}."

    async def questions(self, place: str) -> list[Question]:
        """Return what a place is asked, oldest first."""
        return [_question(call) for call in await self._waiting(place)]

    async def _waiting(self, place: str) -> list[CallRecord]:
        key = await self._inbox.session(place)
        # Looked up, not opened: opening would create a session that is only about to be created.
        record = await self._runtime.store.session(key=key) if key is not None else None
        if record is None or record.session_id is None:
            return []
        states = [CallState.WAITING_APPROVAL]
        return (await self._runtime.calls(session_id=record.session_id, states=states))[::-1]

    @property
    def busy(self) -> bool:
        """Whether anything is in work."""
        return bool(self._busy)

    # --- one place ----------------------------------------------------------------------------------------------------

    def _attend(self, place: str) -> None:
        assert self._tasks is not None, "use `async with desk.open()`"
        self._look_again.add(place)
        if place not in self._busy:
            self._busy.add(place)
            self._tasks.start_soon(self._serve, place)

    async def _serve(self, place: str) -> None:
        while place in self._look_again:
            # Taken off before looking: what arrives during the look is looked for again.
            self._look_again.discard(place)
            while message := await self._inbox.owed(place):
                await self._answer(message)
        self._busy.discard(place)

    async def _answer(self, message: Message) -> None:
        try:
            if not message.posted:
                message = await self._post(message, View(THINKING))
            if message.reply is None:
                reply, ended = await self._ask(message)
                message = await self._inbox.replied(message, reply, ended=ended)
            await self._deliver(message)
        except Refused:
            logger.warning("a reply cannot be delivered", extra={"place": message.place})
        await self._inbox.finish(message)

    async def _deliver(self, message: Message) -> None:
        assert message.reply is not None
        for number, part in enumerate(split(message.reply, self._platform.limit, size=self._platform.size)):
            view = View(part, final=True)
            if number >= len(message.posted):
                message = await self._post(message, view)
                continue
            try:
                await self._edit(message, number, view)
            except Refused:
                # Somebody deleted the message that was to be edited.
                await self._post_again(message, number, view)

    async def _post(self, message: Message, view: View) -> Message:
        key = f"{message.id}/{len(message.posted)}"
        posted = await self._patiently(lambda: self._platform.post(message.place, view, key=key))
        return await self._inbox.posted(message, posted)

    async def _post_again(self, message: Message, number: int, view: View) -> None:
        key = f"{message.id}/{number}/again"
        await self._patiently(lambda: self._platform.post(message.place, view, key=key))

    async def _edit(self, message: Message, number: int, view: View) -> None:
        await self._patiently(lambda: self._platform.edit(message.place, message.posted[number], view))

    async def _patiently(self, request: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Try until the platform has taken it or refused it."""
        pause = 0.5
        while True:
            try:
                return await request()
            except Busy as busy:
                await anyio.sleep(pause if busy.after is None else busy.after)
                pause = min(pause * 2, LONGEST_PAUSE)

    # --- one turn -----------------------------------------------------------------------------------------------------

    async def _ask(self, message: Message) -> tuple[str, bool]:
        """Return the agent's reply, and whether the session is over."""
        pause = 0.5
        while True:
            try:
                session = await self._runtime.open(message.session, agent=self._agent, input=message.text)
                return await self._watched(session, message)
            except ApiError as error:
                if error.status is not None and error.status < 500 and error.status not in {408, 409, 429}:
                    logger.exception("the agent cannot be asked", extra={"place": message.place})
                    return "I cannot talk to the agent; somebody has to look at my settings.", True
                await anyio.sleep(error.retry_after or pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _watched(self, session: SessionRef, message: Message) -> tuple[str, bool]:
        """Wait for the turn while its message shows how it goes."""
        sketch = Sketch()
        ending: tuple[str, bool] | ApiError | None = None
        async with session.events() as events, anyio.create_task_group() as tasks:
            tasks.start_soon(sketch.follow, events)
            tasks.start_soon(self._show, session, sketch, message)
            ending = await _ending(session, message)
            tasks.cancel_scope.cancel()
        if isinstance(ending, ApiError):
            # Raised out here, where no task group wraps it.
            raise ending
        assert ending is not None
        return ending

    async def _show(self, session: SessionRef, sketch: Sketch, message: Message) -> None:
        shown = View(THINKING)
        while True:
            questions = [_question(call) for call in await session.pending_approvals()]
            text = sketch.text(self._platform.limit, size=self._platform.size)
            view = View(text, tuple(questions[:QUESTIONS_SHOWN]), writing=sketch.writing)
            pause = self._platform.pace
            if view != shown:
                try:
                    await self._platform.edit(message.place, message.posted[0], view)
                    shown = view
                except Busy as busy:
                    pause = busy.after or pause
                except Refused:
                    # The answer will be posted anew; until then there is nothing to show it in.
                    return
            await anyio.sleep(pause)


async def _ending(session: SessionRef, message: Message) -> tuple[str, bool] | ApiError:
    """Return the reply and whether the session is over, or why nobody could tell."""
    try:
        if not message.opening:
            await session.send(message.text, key=message.id)
        turn = await session.wait()
    except ApiError as error:
        return error
    except (SessionFailedError, SessionGoneError):
        return "This conversation was ended on the other side. Your next message begins a new one.", True
    except SessionQuarantinedError:
        logger.exception("a session is set aside", extra={"place": message.place})
        return "Something is wrong on my side; somebody has to look at it. Please try again later.", False
    except SessionError:
        return "The agent did not take this message.", False
    if not turn.ok:
        return f"I could not finish this: the turn {turn.status}.", False
    return turn.output_text if turn.output_text.strip() else "(There was nothing to say.)", False


def _question(call: CallRecord) -> Question:
    arguments = json.loads(call.arguments)
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    shown = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    if len(shown) > ARGUMENTS_SHOWN:
        # A person must not approve what they cannot see.
        shown = f"{shown[:ARGUMENTS_SHOWN]}… (the rest: answerback show {call.public_id[:12]} --values)"
    return Question(call.public_id[:32], f"May I run {call.name}({shown})?")
