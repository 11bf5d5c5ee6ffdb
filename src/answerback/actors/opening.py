"""Create a session once, although a lost response cannot be told from a lost request.

The service ignores an Idempotency-Key on creation, so the intent is stored first with the exact body, and the
session carries our id of that intent in its metadata: after a crash or a lost answer the list is asked for it.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal
from weakref import WeakValueDictionary

import anyio
import msgspec

from answerback.actors.api import AgentsApi
from answerback.actors.backoff import Backoff
from answerback.errors import ApiError, ConfigurationError
from answerback.handlers.registry import Handlers
from answerback.model import InputRecord, SessionRecord
from answerback.store.base import PutInput, PutSession, Store, UpdateSession
from answerback.wire.records import Session

logger = logging.getLogger("answerback.opening")

METADATA_KEY = "answerback_key"
"""The metadata that names the intent on the session it created."""
STORE_KEY = "answerback_store"
"""The metadata that names the store on its sessions, so that one filtered list shows all of them."""
METADATA_PAIRS = 16
OPENING_INPUT = "answerback:opening"
"""The key of the input that travels in the creation body."""
LIST_LOOKS = (0.0, 0.5, 1.0, 2.0)
"""Seconds before each look for a session whose creation got no clear answer: the filtered list lags behind."""
CREATE_TRIES = 8
MAX_REQUEST = 4 * 1024 * 1024
"""Bytes a request may have, as others measured."""


class Opener:
    """Creates sessions and attaches to existing ones, in the store first."""

    def __init__(
        self,
        *,
        store: Store,
        api: AgentsApi,
        handlers: Handlers,
        rng: random.Random,
        now: Callable[[], int],
        agent: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._agent = agent
        self._api = api
        self._handlers = handlers
        self._rng = rng
        self._now = now
        self._backoff = Backoff(initial=0.25, maximum=5.0)
        # Weak: a lock is needed only while somebody waits for it, and keys are without number.
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return "<Opener>"

    async def open(self, key: str | None, params: Mapping[str, Any]) -> SessionRecord:
        """Return the session of this key, creating it when there is none; without a key, always a new one.

        Raises:
            ConfigurationError: the parameters cannot be a creation body.
            ApiError: the server definitely refused the creation, or gave no answer for too long.
        """
        if key is None:
            return await self._create(await self._intend(None, params))
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            known = await self._store.session(key=key)
            if known is not None and known.session_id is not None:
                # Asked for by name: a session that was set aside or detached gets another chance.
                aside = known.state in {"quarantined", "detached"}
                return await self._update(known, state="open", reason=None, active=True) if aside else known
            if known is not None:
                # The process ended between intent and answer: the session may be there.
                return await self._create(known, uncertain=True)
            return await self._create(await self._intend(key, params))

    async def attach(self, session_id: str, *, pending: Literal["run", "verify"]) -> SessionRecord:
        """Note that an existing session is to be followed."""
        if not session_id:
            raise ConfigurationError("attach needs a session id")
        known = await self._store.session(session_id=session_id)
        if known is None:
            now = self._now()
            known = SessionRecord(
                local_id=f"ab_{secrets.token_hex(12)}",
                session_id=session_id,
                origin="attached",
                pending=pending,
                active=True,
                created_at=now,
                updated_at=now,
            )
            (count,) = await self._store.write(PutSession(known)).committed()
            if count != 1:
                # Somebody else attached it in this moment.
                return await self.attach(session_id, pending=pending)
        elif known.state in {"gone", "failed", "detached", "quarantined"}:
            # Asked for by name: look again, whatever was concluded before.
            known = await self._update(known, state="open", reason=None, active=True, pending=pending)
        return known

    async def _intend(self, key: str | None, params: Mapping[str, Any]) -> SessionRecord:
        """Store the intent with the exact body before anything is asked of the server."""
        local_id = f"ab_{secrets.token_hex(12)}"
        if self._agent is not None and params.get("agent") is None and params.get("agent_id") is None:
            params = {**params, "agent": self._agent}
        marks = {METADATA_KEY: local_id, STORE_KEY: self._store.info.store_id}
        body = creation_body(params, marks=marks, handlers=self._handlers)
        now = self._now()
        record = SessionRecord(
            local_id=local_id, key=key, origin="opened", request=body, active=True, created_at=now, updated_at=now
        )
        (count,) = await self._store.write(PutSession(record)).committed()
        if count != 1:
            raise ConfigurationError(f"the session key {key!r} is taken in this store")
        return record

    async def _create(self, record: SessionRecord, *, uncertain: bool = False) -> SessionRecord:
        assert record.request is not None
        tries = 0
        while True:
            if uncertain:
                found = await self._find(record)
                if found is not None:
                    return await self._created(record, found)
            try:
                session = await self._api.create(record.request)
            except ApiError as error:
                tries += 1
                if not _passing(error):
                    await self._update(record, state="failed", reason=f"creation: HTTP {error.status}", key=None)
                    raise
                if tries >= CREATE_TRIES:
                    # There may be a session all the same: the intent keeps its key, and the next open() looks for it.
                    raise
                uncertain = error.status is None or error.status >= 500 or error.status == 408
                logger.info("creating a session got no clear answer (HTTP %s); looking for it", error.status)
                await anyio.sleep(error.retry_after or self._backoff.pause(tries, self._rng))
                continue
            return await self._created(record, session.id)

    async def _find(self, record: SessionRecord) -> str | None:
        """Look for the session of an intent; the list may show it late."""
        for pause in LIST_LOOKS:
            await anyio.sleep(pause)
            for session in await self._listed(record):
                # Whether or not the server filtered: only our own intent counts.
                if (session.metadata or {}).get(METADATA_KEY) == record.local_id:
                    return session.id
        return None

    async def _listed(self, record: SessionRecord) -> list[Session]:
        """Ask the list until it answers: a look that failed does not say that there is no session."""
        tries = 0
        while True:
            try:
                return await self._api.find({METADATA_KEY: record.local_id})
            except ApiError as error:
                tries += 1
                if not _passing(error) or tries >= CREATE_TRIES:
                    raise
                await anyio.sleep(error.retry_after or self._backoff.pause(tries, self._rng))

    async def _created(self, record: SessionRecord, session_id: str) -> SessionRecord:
        now = self._now()
        statements: list[PutInput | UpdateSession] = [
            UpdateSession(local_id=record.local_id, changes={"session_id": session_id, "updated_at": now})
        ]
        if _has_input(record.request or b"{}"):
            entry = InputRecord(
                session_id=session_id, key=OPENING_INPUT, state="accepted", created_at=now, updated_at=now
            )
            statements.append(PutInput(entry))
        await self._store.write(*statements).committed()
        return msgspec.structs.replace(record, session_id=session_id, updated_at=now)

    async def _update(self, record: SessionRecord, **changes: Any) -> SessionRecord:
        changes["updated_at"] = self._now()
        await self._store.write(UpdateSession(local_id=record.local_id, changes=changes)).committed()
        return msgspec.structs.replace(record, **changes)


def _passing(error: ApiError) -> bool:
    """Whether the same request may be answered otherwise a little later."""
    return error.status is None or error.status >= 500 or error.status in {408, 409, 429}


def creation_body(params: Mapping[str, Any], *, marks: Mapping[str, str], handlers: Handlers) -> bytes:
    """Build the exact creation body: our marks in the metadata, the handlers' definitions where the agent names no tools.

    Raises:
        ConfigurationError: a parameter answerback decides itself, or one that is no JSON.
    """
    body = dict(params)
    for name in ("stream", "stream_options"):
        if name in body:
            raise ConfigurationError(f"open() follows the session itself; leave {name}= out and use session.events()")
    theirs: dict[str, Any] = body.get("metadata") or {}
    body["metadata"] = {**theirs, **marks}
    if len(body["metadata"]) > METADATA_PAIRS:
        raise ConfigurationError(
            f"a session has at most {METADATA_PAIRS} pairs of metadata, and {len(marks)} of them are answerback's"
        )
    body.setdefault("environment", {"type": "none"})
    agent = body.get("agent")
    if agent is not None:
        body["agent"] = _with_tools(dict(agent), handlers)
    elif body.get("agent_id") is None:
        raise ConfigurationError('open() needs agent={"model": "..."} or agent_id=')
    try:
        encoded = msgspec.json.encode(body)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"a session parameter has no JSON form: {type(error).__name__}") from None
    if len(encoded) > MAX_REQUEST:
        raise ConfigurationError(f"the creation body has {len(encoded)} bytes; the API takes {MAX_REQUEST}")
    return encoded


def _with_tools(agent: dict[str, Any], handlers: Handlers) -> dict[str, Any]:
    tools: list[dict[str, Any]] | None = agent.get("tools")
    if tools is None:
        agent["tools"] = handlers.definitions()
        return agent
    unknown = sorted({str(t.get("name")) for t in tools if t.get("type") == "function"} - set(handlers.names))
    if unknown:
        logger.warning("the agent declares functions without a handler here: %s", ", ".join(unknown))
    return agent


def _has_input(request: bytes) -> bool:
    decoded: dict[str, Any] = msgspec.json.decode(request)
    return bool(decoded.get("input"))
