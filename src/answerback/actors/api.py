"""The HTTP edge: raw bytes through the official client, in and out. The only room that knows `openai` is here.

Outcomes leave as stored bytes (`client.post(path, content=...)`), answers are decoded into our own structs: an
official resource object costs 20 to 40 times as much, and its unions misname the members it does not know.
Our backoff is the only retry: the client's own would multiply POSTs whose answers are ambiguous.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote, urlencode

import anyio
import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, AsyncOpenAI

from answerback.actors.backoff import Backoff
from answerback.errors import ApiError
from answerback.wire.decoding import decode_record
from answerback.wire.records import Item, Page, Session, Turn

HEADERS = {"OpenAI-Beta": "agents=v1"}
REQUEST_TIMEOUT = 60.0
"""Seconds for one GET or POST; nothing the service does in a request takes longer (a turn runs outside of it)."""
TRIES = 6
"""Times a request that somebody waits for is made before its failure is handed to them."""
PAGES = 50
"""Pages of 100 a listing may follow before it gives up: bounds what a broken cursor can cost."""


class AgentsApi(Protocol):
    """What the actors need of the Agents API. Every method raises ApiError for anything but a success."""

    async def retrieve(self, session_id: str) -> Session:
        """Read a session."""
        ...

    async def turns(self, session_id: str) -> list[Turn]:
        """Read the newest turns (up to 100), newest first."""
        ...

    async def turn(self, session_id: str, turn_id: str) -> Turn:
        """Read one turn."""
        ...

    async def turn_items(self, session_id: str, turn_id: str) -> list[Item]:
        """Read the items of one root turn, oldest first."""
        ...

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Submit input events under an Idempotency-Key."""
        ...

    async def create(self, body: bytes) -> Session:
        """Create a session."""
        ...

    async def find(self, metadata: dict[str, str]) -> list[Session]:
        """List sessions by metadata; the list may lag behind."""
        ...

    async def sessions(
        self, *, metadata: Mapping[str, str], agent_id: str | None = None, after: str | None = None
    ) -> Page[Session]:
        """Read one page (up to 100) of a filtered list of sessions, newest first; it may lag behind."""
        ...

    def stream(self, session_id: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Subscribe to a session's events; yields the raw bytes as they come."""
        ...


RecordT = TypeVar("RecordT")


class OpenAIAgentsApi:
    """The Agents API through an `AsyncOpenAI` client for requests and one for streams."""

    def __init__(self, client: AsyncOpenAI, stream_client: AsyncOpenAI) -> None:
        self._client = client
        # The first touch of this loads a second's worth of modules: here, and not in the middle of the first turn.
        self._events = stream_client.beta.agents.sessions.events

    def __repr__(self) -> str:
        return f"<OpenAIAgentsApi {self._client.base_url}>"

    async def retrieve(self, session_id: str) -> Session:
        """Read a session."""
        return await self._get(_path(session_id), Session)

    async def turns(self, session_id: str) -> list[Turn]:
        """Read the newest turns (up to 100), newest first."""
        page = await self._get(_path(session_id, "turns") + "?limit=100&order=desc", Page[Turn])
        return page.data

    async def turn(self, session_id: str, turn_id: str) -> Turn:
        """Read one turn."""
        return await self._get(_path(session_id, "turns", turn_id), Turn)

    async def turn_items(self, session_id: str, turn_id: str) -> list[Item]:
        """Read the items of one root turn, oldest first, following `last_id` (an item's own id may be null)."""
        path = _path(session_id, "turns", turn_id, "items")
        items: list[Item] = []
        after: str | None = None
        for _ in range(PAGES):
            query = {"limit": "100", "order": "asc", **({"after": after} if after else {})}
            page = await self._get(f"{path}?{urlencode(query)}", Page[Item])
            items += page.data
            if not page.has_more or not page.last_id or page.last_id == after:
                break
            after = page.last_id
        return items

    async def post(self, session_id: str, body: bytes, *, key: str) -> None:
        """Submit input events under an Idempotency-Key."""
        headers = {**HEADERS, "Content-Type": "application/json", "Idempotency-Key": key, "Accept": "*/*"}
        await self._request(
            lambda: self._client.post(
                _path(session_id, "events"),
                cast_to=httpx2.Response,
                content=body,
                options={"headers": headers, "timeout": REQUEST_TIMEOUT},
            )
        )

    async def create(self, body: bytes) -> Session:
        """Create a session (as JSON: a creation stream closes at the first idle and cannot be followed)."""
        headers = {**HEADERS, "Content-Type": "application/json"}
        response = await self._request(
            lambda: self._client.post(
                "/agents/sessions",
                cast_to=httpx2.Response,
                content=body,
                options={"headers": headers, "timeout": REQUEST_TIMEOUT},
            )
        )
        return _decode(response.content, Session)

    async def find(self, metadata: dict[str, str]) -> list[Session]:
        """List sessions by metadata; the list may lag behind."""
        query = urlencode({"limit": "20", **{f"metadata[{name}]": value for name, value in metadata.items()}})
        return (await self._get(f"/agents/sessions?{query}", Page[Session])).data

    async def sessions(
        self, *, metadata: Mapping[str, str], agent_id: str | None = None, after: str | None = None
    ) -> Page[Session]:
        """Read one page (up to 100) of a filtered list of sessions, newest first; it may lag behind."""
        pairs = {f"metadata[{name}]": value for name, value in metadata.items()}
        rest = {name: value for name, value in (("agent_id", agent_id), ("after", after)) if value is not None}
        query = urlencode({"limit": "100", "order": "desc", **pairs, **rest})
        return await self._get(f"/agents/sessions?{query}", Page[Session])

    @asynccontextmanager
    async def stream(self, session_id: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Subscribe to a session's events; yields the raw bytes as they come."""
        timeout = httpx2.Timeout(REQUEST_TIMEOUT, read=None)
        try:
            async with self._events.with_streaming_response.stream(
                session_id, include_obfuscation=False, timeout=timeout
            ) as response:
                yield response.iter_bytes()
        except APIStatusError as error:
            raise _status_error(error) from None
        except (APIConnectionError, httpx2.HTTPError) as error:
            raise ApiError(f"the event stream broke: {type(error).__name__}", status=None) from None

    async def _get(self, path: str, kind: type[RecordT]) -> RecordT:
        response = await self._request(
            lambda: self._client.get(
                path, cast_to=httpx2.Response, options={"headers": HEADERS, "timeout": REQUEST_TIMEOUT}
            )
        )
        return _decode(response.content, kind)

    async def _request(self, send: Callable[[], Awaitable[httpx2.Response]]) -> httpx2.Response:
        try:
            response = await send()
        except APIStatusError as error:
            raise _status_error(error) from None
        except (APIConnectionError, httpx2.HTTPError) as error:
            where = f"{self._client.base_url.scheme}://{self._client.base_url.netloc.decode('ascii', 'replace')}"
            raise ApiError(f"no answer from the Agents API at {where}: {type(error).__name__}", status=None) from None
        return response


async def retried(request: Callable[[], Awaitable[RecordT]], *, rng: random.Random) -> RecordT:
    """Perform a request for a caller who waits, again while it fails in passing.

    Raises:
        ApiError: a definite answer, or the last of `TRIES` failures.
    """
    backoff = Backoff()
    tries = 0
    while True:
        try:
            return await request()
        except ApiError as error:
            tries += 1
            passing = error.status is None or error.status >= 500 or error.status in {408, 409, 429}
            if not passing or tries >= TRIES:
                raise
            await anyio.sleep(error.retry_after or backoff.pause(tries, rng))


def _path(session_id: str, *rest: str) -> str:
    # An id is opaque; quoting keeps one with a slash or a dot from naming another resource.
    return "/".join(["/agents/sessions", *(quote(part, safe="") for part in (session_id, *rest))])


def _decode(content: bytes, kind: type[RecordT]) -> RecordT:
    try:
        return decode_record(content, kind)
    except msgspec.MsgspecError:
        # A success whose body we cannot read is no answer: the caller reads again, as after a broken connection.
        raise ApiError(f"the Agents API answered with something that is no {kind.__name__}", status=None) from None


def _status_error(error: APIStatusError) -> ApiError:
    body: object = error.body
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    message = fields.get("message")
    code = fields.get("code")
    return ApiError(
        message if isinstance(message, str) else f"HTTP {error.status_code}",
        status=error.status_code,
        code=code if isinstance(code, str) else None,
        retry_after=_retry_after(error.response.headers),
    )


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Read `retry-after-ms` or `retry-after` (seconds); an HTTP date is left to our own backoff."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 86_400:
            return seconds
    return None
