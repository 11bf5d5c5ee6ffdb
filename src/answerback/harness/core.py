"""The parts of one harness, put together: state, model, log, faults, clock and disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec

from answerback.errors import RuntimeStateError
from answerback.harness.bare import BareBody
from answerback.harness.clock import Clock
from answerback.harness.commits import Commits, rows_of
from answerback.harness.errors import not_found
from answerback.harness.faults import Fault, FaultRules
from answerback.harness.input_log import InputLog
from answerback.harness.knobs import Knobs
from answerback.harness.models.base import Model
from answerback.harness.models.script import Script
from answerback.harness.models.scripted import ScriptedModel
from answerback.harness.persistence import Documents, read_documents
from answerback.harness.randomness import Randomness
from answerback.harness.records import Call, Item, KeyUse, LogEntry, Session, Turn
from answerback.harness.requests import Creation
from answerback.harness.state import SessionState
from answerback.harness.stream import Hub
from answerback.harness.turns import TurnRunner


class Core:
    """One local Agents API without its HTTP; `running()` brings it to life.

    Args:
        script: the scripted model's script, or any model.
        knobs: what differs from the default behaviour.
        faults: fault rules to begin with.
        seed: what every id and every random choice is drawn from.
        folder: where state is kept; None keeps it in memory only.
        api_key: the only key that is accepted; None accepts any.
        clock: the clock.
    """

    def __init__(
        self,
        script: Script | Model,
        *,
        knobs: Knobs | None = None,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        seed: int = 0,
        folder: str | Path | None = None,
        api_key: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.knobs = knobs or Knobs()
        self.api_key = api_key
        self.clock = clock or Clock()
        self.randomness = Randomness(seed=seed)
        self.hub = Hub()
        self.log = InputLog(clock=self.clock)
        self.faults = FaultRules(noted=self.log.fault)
        self.faults.add(*faults)
        self.documents = Documents(folder)
        self.commits = Commits(documents=self.documents, hub=self.hub, log=self.log)
        self.sessions: dict[str, SessionState] = {}
        self.deleted: set[str] = set()
        self.create_keys: dict[str, KeyUse] = {}
        self._numbers = 0
        self._pauses: set[anyio.CancelScope] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self.runner = TurnRunner(
            clock=self.clock, randomness=self.randomness, commit=self.commits.commit, model=_model(script)
        )

    def __repr__(self) -> str:
        state = "running" if self._tasks is not None else "stopped"
        return f"<Core {state}, {len(self.sessions)} sessions, {self.runner!r}>"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Core]:
        """Read the state from disk, go on with turns that were running, and serve until the block ends."""
        self._restore(await self.documents.open())
        bare = BareBody()
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self.documents.durable:
                    await self.documents.write([("meta", "boot", str(self.randomness.boot).encode())])
                    tasks.start_soon(self.commits.run)
                for session in list(self.sessions.values()):
                    self._resume(session)
                with bare:
                    yield self
                self.drain()
                await self.commits.settled()
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            await self.documents.aclose()
        bare.reraise()

    @property
    def tasks(self) -> anyio.abc.TaskGroup:
        """Where this harness's tasks run, those of an in-process transport included."""
        if self._tasks is None:
            raise RuntimeStateError("the harness is not running; use it inside `async with core.running()`")
        return self._tasks

    async def pause(self, seconds: float) -> None:
        """Hold a request back on the harness clock, as a fault rule wants it; the end of the harness ends it."""
        if self.hub.draining:
            return
        with anyio.CancelScope() as scope:
            self._pauses.add(scope)
            try:
                await self.clock.sleep(seconds)
            finally:
                self._pauses.discard(scope)

    def drain(self) -> None:
        """End every stream and every pause now, so that nothing is left that would keep a server from ending."""
        self.hub.drain()
        for scope in tuple(self._pauses):
            scope.cancel()

    def set_script(self, script: Script | Model) -> None:
        """Put another model in place of the present one, for the turns that begin from now on."""
        self.runner.model = _model(script)

    def find(self, session_id: str) -> SessionState:
        """Find a session.

        Raises:
            WireError: 404.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise not_found()
        return session

    def create(self, creation: Creation) -> SessionState:
        """Make a session with its initial input accepted and not yet admitted."""
        now = self.clock.now()
        self._numbers += 1
        record = Session(
            id=self.randomness.id("sess"),
            number=self._numbers,
            agent={"id": self.randomness.id("agent"), **creation.agent},
            environment=creation.environment,
            created_at=int(now),
            last_active_at=int(now),
            metadata=creation.metadata,
            listed_at=now + self.knobs.list_lag,
            vault_ids=creation.vault_ids,
            prompt_cache_options=creation.prompt_cache_options,
            initial_pending=True,
            inbox=[creation.messages],
        )
        session = self._state(record)
        self.sessions[record.id] = session
        return session

    def delete(self, session: SessionState) -> None:
        """Forget a session; its streams end, its id stays known as deleted."""
        del self.sessions[session.id]
        self.deleted.add(session.id)
        session.take_touched()
        tombstone = ("deleted", session.id, msgspec.json.encode(session.id))
        self.commits.submit(None, [], rows=[*rows_of(session), tombstone])
        self.runner.stop(session.id)
        self.hub.close(session.id)

    def admit_soon(self, session: SessionState, count: int) -> None:
        """Let accepted messages take effect after the admission delay, one task each, and run a turn they start."""
        for _ in range(count):
            self.tasks.start_soon(self._admit, session, self.clock.now() + self.knobs.admission_delay)

    def admit_now(self, session: SessionState, count: int) -> list[Any]:
        """Let accepted messages take effect at once; returns the frames and starts a turn they begin."""
        idle = session.active is None
        frames = [frame for _ in range(count) for frame in session.admit()]
        if idle and session.active is not None:
            self.tasks.start_soon(self.runner.run, session)
        return frames

    async def _admit(self, session: SessionState, due: float) -> None:
        await self.clock.sleep_until(due)
        if self.sessions.get(session.id) is not session:
            return
        idle = session.active is None
        await self.commits.commit(session, session.admit())
        if idle:
            await self.runner.run(session)

    def _resume(self, session: SessionState) -> None:
        if session.active is not None:
            self.tasks.start_soon(self.runner.run, session)
        self.admit_soon(session, len(session.record.inbox))

    def _state(self, record: Session) -> SessionState:
        return SessionState(record, clock=self.clock, randomness=self.randomness, knobs=self.knobs)

    def _restore(self, found: dict[str, list[bytes]]) -> None:
        boots = [int(data) for data in found.get("meta", ())]
        if not boots:
            return
        self.randomness.restart(max(boots) + 1)
        turns = _grouped(read_documents(found, "turn", Turn))
        items = _grouped(read_documents(found, "item", Item))
        calls = _grouped(read_documents(found, "call", Call))
        keys = _grouped(read_documents(found, "key", KeyUse))
        for record in sorted(read_documents(found, "session", Session), key=lambda session: session.number):
            session = self.sessions[record.id] = self._state(record)
            own = record.id
            session.restore(
                turns=turns.get(own, []), items=items.get(own, []), calls=calls.get(own, []), keys=keys.get(own, [])
            )
            self._numbers = max(self._numbers, record.number)
        self.deleted = set(read_documents(found, "deleted", str))
        self.create_keys = {use.key: use for use in read_documents(found, "create_key", KeyUse)}
        entries = sorted(read_documents(found, "log", LogEntry), key=lambda entry: entry.seq)
        self.log.restore(entries)
        model = self.runner.model
        if isinstance(model, ScriptedModel):
            model.resume(turn.memory for session in self.sessions.values() for turn in session.turns)


def _model(script: Script | Model) -> Model:
    return ScriptedModel(script) if isinstance(script, Script) else script


def _grouped(records: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record.session_id, []).append(record)
    return found
