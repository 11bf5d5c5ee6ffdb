"""A desk to test the sending of results at: a store in memory, a journal, a mailbox and an API that answers by script."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec

from answerback.actors.journal import Journal
from answerback.actors.mailbox import Mailbox
from answerback.actors.messages import Message
from answerback.actors.submit import Submitter
from answerback.errors import ApiError
from answerback.model import CallKey, CallRecord, CallState
from answerback.store.base import InsertCall
from answerback.store.memory import MemoryStore
from answerback.wire import inputs
from answerback.wire.records import Item, Page, Session, Turn
from unit.actors.rows import SESSION, key, row

NOW = 1_000_000_000_000
"""The wall clock of the desk, in microseconds."""


class Posted(msgspec.Struct, frozen=True):
    """One POST as it left."""

    body: bytes
    key: str
    at: float

    @property
    def calls(self) -> list[str]:
        """The calls it answers."""
        return [element["call_id"] for element in msgspec.json.decode(self.body)["events"]]


def refusal(status: int | None, text: str = "no", *, retry_after: float | None = None) -> ApiError:
    """Build an answer that is no success."""
    return ApiError(text, status=status, code="a_code", retry_after=retry_after)


def race(call_id: str) -> ApiError:
    """Build the answer for a call the server does not wait for (yet)."""
    return refusal(400, f"Unknown pending tool call: {call_id}")


class ScriptedApi:
    """Records every POST, checks that what leaves is on stable storage, and answers 202 where the script ends."""

    def __init__(self, store: MemoryStore) -> None:
        self.posts: list[Posted] = []
        self.script: list[ApiError | None] = []
        self.always: ApiError | None = None
        self.stale: set[str] = set()
        """Calls the server does not wait for: a POST with one of them is refused."""
        self._store = store
        self._gate: anyio.Event | None = None
        self._arrived = anyio.Event()

    def hold(self) -> None:
        """Leave every POST from now on without an answer until `release`."""
        self._gate = anyio.Event()

    def release(self) -> None:
        """Answer what was held."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()

    async def arrived(self, count: int) -> Posted:
        """Wait for the n-th POST (1-based) and return it."""
        while len(self.posts) < count:
            await self._arrived.wait()
        return self.posts[count - 1]

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Take one POST."""
        await self._check_stored(body)
        self.posts.append(Posted(body, key, anyio.current_time()))
        arrived, self._arrived = self._arrived, anyio.Event()
        arrived.set()
        if self._gate is not None:
            await self._gate.wait()
        answer = self.script.pop(0) if self.script else self.always
        for call_id in self.stale.intersection(self.posts[-1].calls):
            answer = race(call_id)
        if answer is not None:
            raise answer

    async def _check_stored(self, body: bytes) -> None:
        """No bytes leave that a crash in this moment would lose."""
        elements = [bytes(raw) for raw in msgspec.json.decode(body, type=_Body).events]
        keys = [CallKey(SESSION, one["turn_id"], one["call_id"]) for one in map(msgspec.json.decode, elements)]
        stored = await self._store.calls_by_key(keys)
        assert [stored[one].payload for one in keys] == elements
        assert inputs.body(elements) == body

    async def retrieve(self, session_id: str) -> Session:
        """Not asked here."""
        raise AssertionError

    async def turns(self, session_id: str) -> list[Turn]:
        """Not asked here."""
        raise AssertionError

    async def turn(self, session_id: str, turn_id: str) -> Turn:
        """Not asked here."""
        raise AssertionError

    async def turn_items(self, session_id: str, turn_id: str) -> list[Item]:
        """Not asked here."""
        raise AssertionError

    async def create(self, body: bytes) -> Session:
        """Not asked here."""
        raise AssertionError

    async def find(self, metadata: dict[str, str]) -> list[Session]:
        """Not asked here."""
        raise AssertionError

    async def sessions(
        self, *, metadata: Mapping[str, str], agent_id: str | None = None, after: str | None = None
    ) -> Page[Session]:
        """Not asked here."""
        raise AssertionError

    def stream(self, session_id: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Not asked here."""
        raise AssertionError


class _Body(msgspec.Struct):
    events: list[msgspec.Raw]


class Desk:
    """What a test of the submitter needs."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.api = ScriptedApi(store)
        self.mailbox = Mailbox()
        self.journal = Journal(SESSION, store, now=lambda: NOW)
        self.gate = anyio.CapacityLimiter(4)
        self.submitter = Submitter(
            journal=self.journal,
            api=self.api,
            mailbox=self.mailbox,
            gate=self.gate,
            rng=random.Random(0),
            now=lambda: NOW,
            refused_text=refused,
        )

    async def put(self, *records: CallRecord) -> list[CallKey]:
        """Store rows and read them as a restarted actor does; return their keys."""
        await self.store.write(*(InsertCall(record) for record in records)).committed()
        await self.journal.load()
        await self.journal.lookup([record.key for record in records])
        return [record.key for record in records]

    async def finished(self, *call_ids: str) -> list[CallKey]:
        """Store finished calls; return their keys."""
        return await self.put(*(row(CallState.FINISHED, key(call_id)) for call_id in call_ids))

    def submit(self, *keys: CallKey) -> None:
        """Have these calls sent."""
        for one in keys:
            self.submitter.add(one)

    def record(self, call: CallKey) -> CallRecord:
        """Return what the journal has."""
        record = self.journal.get(call)
        assert record is not None
        return record

    async def stored(self, call: CallKey) -> CallRecord:
        """Return what stable storage has, lazy writes included."""
        await self.store.flush()
        return (await self.store.calls_by_key([call]))[call]

    def told(self) -> list[Message]:
        """Return what the actor was told."""
        return self.mailbox.drain_control()

    async def quiet(self) -> None:
        """Return when the submitter has nothing to do for now."""
        await anyio.wait_all_tasks_blocked()


def refused(record: CallRecord, error: ApiError) -> bytes:
    """Build a substitute."""
    return inputs.tool_result(
        turn_id=record.key.turn_id, call_id=record.key.call_id, success=False, output=None, error=f"HTTP {error.status}"
    )


def key_of(keys: Iterable[CallKey], epoch: int = 0) -> str:
    """Derive the key of a batch, as the wire does."""
    return inputs.results_key((one.session_id, one.turn_id, one.call_id, epoch) for one in keys)


@asynccontextmanager
async def desk() -> AsyncGenerator[Desk]:
    """Run a submitter for as long as the block."""
    async with MemoryStore() as store, anyio.create_task_group() as group:
        one = Desk(store)
        group.start_soon(one.submitter.run)
        try:
            yield one
        finally:
            # A test that fails in between must not leave the store waiting for ever to be closed.
            store.release_commits()
            group.cancel_scope.cancel()


async def until(predicate: Callable[[], bool]) -> None:
    """Let the other tasks run until something is so."""
    with anyio.fail_after(5):
        while not predicate():
            await anyio.lowlevel.checkpoint()


def calls_of(posts: Sequence[Posted]) -> list[list[str]]:
    """Return which calls each POST answered."""
    return [post.calls for post in posts]
