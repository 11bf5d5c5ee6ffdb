"""The endpoints of the Agents API that a turn needs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from answerback.harness.bodies import read_json
from answerback.harness.core import Core
from answerback.harness.errors import WireError, conflict, invalid, not_found
from answerback.harness.event_route import Events
from answerback.harness.faults import Do, On
from answerback.harness.frames import Frame
from answerback.harness.pages import PAGE_KEYS, page, read_page_query
from answerback.harness.records import JSON, KeyUse
from answerback.harness.requests import read_creation, read_update
from answerback.harness.responses import error_response, fault_response, json_response, replaces
from answerback.harness.state import SessionState
from answerback.harness.stream import CREATION_ENDS, SUBSCRIPTION_ENDS, EventStream, Subscriber, catch_up
from answerback.harness.views import listed_items

Endpoint = Callable[[Request], Awaitable[Response]]


class Routes:
    """The endpoints over one core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<Routes over {self._core!r}>"

    def table(self) -> list[Route]:
        """List the routes; every other path or method is refused by the app."""
        one = "/v1/agents/sessions/{session_id}"
        return [
            Route("/v1/agents/sessions", self._guard("create", self.create), methods=["POST"]),
            Route("/v1/agents/sessions", self._guard("get", self.list_sessions), methods=["GET"]),
            Route(one, self._guard("get", self.retrieve), methods=["GET"]),
            Route(one, self._guard(None, self.update), methods=["POST"]),
            Route(one, self._guard(None, self.delete), methods=["DELETE"]),
            Route(f"{one}/events", self._guard(None, Events(self._core).post), methods=["POST"]),
            Route(f"{one}/events", self._guard("stream", self.stream), methods=["GET"]),
            Route(f"{one}/items", self._guard("get", self.list_items), methods=["GET"]),
            Route(f"{one}/turns", self._guard("get", self.list_turns), methods=["GET"]),
            Route(f"{one}/turns/{{turn_id}}", self._guard("get", self.retrieve_turn), methods=["GET"]),
            Route(f"{one}/turns/{{turn_id}}/items", self._guard("get", self.list_turn_items), methods=["GET"]),
            # There never are any here, and an empty list says so truly.
            Route(f"{one}/subagents", self._guard("get", self.list_nothing), methods=["GET"]),
            Route(f"{one}/artifacts", self._guard("get", self.list_nothing), methods=["GET"]),
        ]

    def _guard(self, on: On | None, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint: refusals become responses, and fault rules for its kind of request apply."""

        async def guarded(request: Request) -> Response:
            session_id = request.path_params.get("session_id")
            do = self._core.faults.request(on, session_id) if on is not None else None
            try:
                if do is not None:
                    await self._core.pause(do.stall + do.delay)
                    request.state.fault = do
                    if replaces(do) and not do.apply:
                        if on == "create":
                            self._log_request("create", request, await request.body(), do=do, effect=False)
                        return fault_response(do)
                response = await endpoint(request)
            except WireError as error:
                response = error_response(error)
            # What an answer tells of must be on disk when it is told.
            await self._core.commits.settled()
            if do is None or not replaces(do):
                return response
            if isinstance(response, EventStream):
                response.discard()
            return fault_response(do)

        return guarded

    def _log_request(
        self, kind: str, request: Request, body: bytes, *, effect: bool, do: Do | None = None,
        error: WireError | None = None, session_id: str | None = None, status: int = 200,
    ) -> None:  # fmt: skip
        told = error.status if error is not None else status
        if do is not None and replaces(do):
            told = do.status or 0
        self._core.log.add(
            kind,
            session_id=session_id or request.path_params.get("session_id"),
            status=told,
            body=body,
            effect=effect,
            request=self._core.log.request(),
            key=request.headers.get("idempotency-key"),
            code=error.code if error is not None else None,
        )
        if error is not None or not effect:
            self._core.commits.submit(None, [])

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        """Create a session with its first input, as JSON or as the stream of its first turn (201)."""
        core, body = self._core, await request.body()
        do: Do | None = getattr(request.state, "fault", None)
        try:
            creation = read_creation(read_json(body, request.headers.get("content-type")))
            known = self._known_creation(request, body)
        except WireError as error:
            self._log_request("create", request, body, effect=False, error=error, do=do)
            raise
        if known is not None:
            self._log_request("create", request, body, effect=False, session_id=known.id, status=201, do=do)
            return json_response(known.snapshot(), status=201)
        session = core.create(creation)
        subscriber = Subscriber(
            session.id,
            ends=CREATION_ENDS,
            padded=creation.include_obfuscation and core.knobs.obfuscation,
            limit=core.knobs.stream_buffer,
        )
        if creation.stream:
            core.hub.add(subscriber)
        frames: list[Frame] = [session.frames.session("created", session.snapshot())]
        if core.knobs.admission == "sync":
            frames += core.admit_now(session, 1)
        self._log_request("create", request, body, effect=True, session_id=session.id, status=201, do=do)
        snapshot = session.snapshot()
        core.commits.submit(session, frames, rows=self._creation_key_rows(request, body, session))
        if core.knobs.admission == "async":
            core.admit_soon(session, 1)
        if creation.stream:
            return self._event_stream(subscriber, session, status=201)
        return json_response(snapshot, status=201)

    def _known_creation(self, request: Request, body: bytes) -> SessionState | None:
        key = request.headers.get("idempotency-key")
        use = self._core.create_keys.get(key) if key is not None else None
        if self._core.knobs.create_key == "ignore" or use is None:
            return None
        if use.body_sha256 != hashlib.sha256(body).hexdigest():
            raise conflict("this Idempotency-Key was used with another body")
        return self._core.sessions.get(use.session_id)

    def _creation_key_rows(self, request: Request, body: bytes, session: SessionState) -> list[Any]:
        key = request.headers.get("idempotency-key")
        if self._core.knobs.create_key == "ignore" or key is None:
            return []
        use = KeyUse(session_id=session.id, key=key, body_sha256=hashlib.sha256(body).hexdigest())
        self._core.create_keys[key] = use
        return [("create_key", key, msgspec.json.encode(use))]

    async def list_sessions(self, request: Request) -> Response:
        """List sessions, newest first; filters by metadata are eventually consistent (a knob)."""
        query = request.query_params
        wanted: dict[str, str] = {}
        for name, value in query.multi_items():
            match = re.fullmatch(r"metadata\[(.{1,64})\]", name)
            if match is not None:
                wanted[match[1]] = value
            elif name not in (*PAGE_KEYS, "agent_id"):
                raise invalid(f"Unknown parameter: '{name}'.", param=name)
        if len(wanted) > 16:
            raise invalid("'metadata' may have at most 16 pairs.", param="metadata")
        now, agent_id = self._core.clock.now(), query.get("agent_id")
        found = [
            session
            for session in self._core.sessions.values()
            if (agent_id is None or session.record.agent["id"] == agent_id)
            and (not wanted or (session.record.listed_at <= now and _matches(session.record.metadata, wanted)))
        ]
        asked = read_page_query(query, strict_limit=False)
        listing = page([{"id": session.id} for session in found], asked, bad_cursor=not_found())
        listing["data"] = [self._core.sessions[entry["id"]].snapshot() for entry in listing["data"]]
        return json_response(listing)

    async def retrieve(self, request: Request) -> Response:
        """Retrieve a session."""
        _no_query(request)
        return json_response(self._core.find(request.path_params["session_id"]).snapshot())

    async def update(self, request: Request) -> Response:
        """Update the agent's model, effort, tier or tools, or the metadata, of a session."""
        core, body = self._core, await request.body()
        try:
            session = core.find(request.path_params["session_id"])
            update = read_update(read_json(body, request.headers.get("content-type")))
        except WireError as error:
            self._log_request("update", request, body, effect=False, error=error)
            raise
        record = session.record
        if update.agent is not None:
            changes = dict(update.agent)
            if "effort" in changes:
                changes["reasoning"] = {**record.agent["reasoning"], "effort": changes.pop("effort")}
            record.agent = {**record.agent, **changes}
        if update.metadata is not None:
            record.metadata, record.listed_at = update.metadata, core.clock.now() + core.knobs.list_lag
        if update.prompt_cache_options is not None or update.clears_prompt_cache_options:
            record.prompt_cache_options = update.prompt_cache_options
        session.touch(record)
        self._log_request("update", request, body, effect=True)
        core.commits.submit(session, [])
        return json_response(session.snapshot())

    async def delete(self, request: Request) -> Response:
        """Delete a session that is idle or failed and requires nothing; a repeat is accepted (observed)."""
        core, session_id = self._core, request.path_params["session_id"]
        repeated = session_id in core.deleted
        try:
            session = None if repeated else core.find(session_id)
            if session is not None and (session.status not in ("idle", "failed") or session.required):
                raise conflict("session must be durably idle or failed without required actions before deletion")
        except WireError as error:
            self._log_request("delete", request, b"", effect=False, error=error)
            raise
        self._log_request("delete", request, b"", effect=not repeated)
        if session is not None:
            core.delete(session)
        return json_response({"id": session_id, "object": "agent.session.deleted", "deleted": True})

    # -- what a session holds ---------------------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Follow a session's events from now on; nothing is replayed and Last-Event-ID is ignored."""
        query = request.query_params
        _no_query(request, "include_obfuscation", "stream")
        padded = query.get("include_obfuscation", "true") == "true"
        session = self._core.find(request.path_params["session_id"])
        await self._core.commits.settled()
        knobs = self._core.knobs
        subscriber = Subscriber(
            session.id, ends=SUBSCRIPTION_ENDS, padded=padded and knobs.obfuscation, limit=knobs.stream_buffer
        )
        subscriber.put(catch_up(session, self._core.randomness))
        self._core.hub.add(subscriber)
        if session.record.failed:
            subscriber.close()
        return self._event_stream(subscriber, session)

    def _event_stream(self, subscriber: Subscriber, session: SessionState, *, status: int = 200) -> Response:
        core = self._core
        return EventStream(
            subscriber,
            hub=core.hub,
            clock=core.clock,
            randomness=core.randomness,
            faults=core.faults,
            session=session,
            status=status,
        )

    async def list_items(self, request: Request) -> Response:
        """List a session's items of all turns."""
        session = self._core.find(request.path_params["session_id"])
        objects = listed_items(session.items, knobs=self._core.knobs)
        bad_cursor = invalid("Invalid session item ID in `after`", param="after")
        return self._page(request, objects, bad_cursor=bad_cursor, strict_limit=False)

    async def list_turns(self, request: Request) -> Response:
        """List a session's turns."""
        session = self._core.find(request.path_params["session_id"])
        objects = [session.view(turn) for turn in session.turns]
        return self._page(request, objects, bad_cursor=not_found(), strict_limit=True)

    async def retrieve_turn(self, request: Request) -> Response:
        """Retrieve one turn."""
        _no_query(request)
        session = self._core.find(request.path_params["session_id"])
        turn = session.turn(request.path_params["turn_id"])
        if turn is None:
            raise not_found()
        return json_response(session.view(turn))

    async def list_turn_items(self, request: Request) -> Response:
        """List the items of one turn; its cursor is `last_id`, which need not be an item's id."""
        session = self._core.find(request.path_params["session_id"])
        turn = session.turn(request.path_params["turn_id"])
        if turn is None:
            raise not_found()
        items = [item for item in session.items if item.turn_id == turn.id]
        objects = listed_items(items, knobs=self._core.knobs)
        opaque = self._core.knobs.turn_cursor == "opaque"
        bad_cursor = invalid("Invalid session item ID in `after`", param="after")
        return self._page(
            request, objects, bad_cursor=bad_cursor, strict_limit=False, cursor=_item_cursor if opaque else None
        )

    async def list_nothing(self, request: Request) -> Response:
        """List what this harness never has."""
        self._core.find(request.path_params["session_id"])
        return json_response({"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False})

    def _page(
        self, request: Request, objects: Sequence[JSON], *, bad_cursor: WireError, strict_limit: bool,
        cursor: Callable[[str], str] | None = None,
    ) -> Response:  # fmt: skip
        _no_query(request, *PAGE_KEYS)
        query = read_page_query(request.query_params, strict_limit=strict_limit)
        return json_response(page(objects, query, bad_cursor=bad_cursor, cursor=cursor))


def _matches(metadata: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _no_query(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise invalid(f"Unknown parameter: '{name}'.", param=name)


def _item_cursor(item_id: str) -> str:
    return "cursor_" + item_id.rpartition("_")[2]
