"""Two HTTP pools from one official client: streams must never starve a POST of a connection.

With 1,000 open streams the client's default pool is full and every request waits for minutes.
"""

from __future__ import annotations

import logging

import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from answerback.errors import ConfigurationError

logger = logging.getLogger("answerback.clients")

DEFAULT_STREAMS = 900
"""Live streams in the pool we make for them."""
CUSTOM_STREAMS = 20
"""Live streams in a client whose limits cannot be read; further sessions are polled."""


class Clients:
    """The client for requests, the one for streams, and what of it is ours to close."""

    def __init__(
        self,
        client: AsyncOpenAI,
        stream_client: AsyncOpenAI | None,
        *,
        max_streams: int | None,
        close_client: bool = False,
    ) -> None:
        self._closed_with_us = client if close_client else None
        transport = transport_of(client)
        # The copies share the user's http client, auth callables, base_url, headers and timeout; never closed by us.
        self.requests = client.copy(max_retries=0)
        self._own: httpx2.AsyncClient | None = None
        custom = not is_default_transport(transport)
        if stream_client is not None:
            transport_of(stream_client)
            self.streams = stream_client.copy(max_retries=0)
            default = DEFAULT_STREAMS
        elif custom:
            logger.info(
                "the client has a custom http client: streams share it (at most %s live, the rest is polled); "
                "Runtime(stream_client=...) gives them one of their own",
                CUSTOM_STREAMS if max_streams is None else max_streams,
            )
            self.streams = self.requests
            default = CUSTOM_STREAMS
        else:
            default = DEFAULT_STREAMS
            streams = default if max_streams is None else max_streams
            limits = httpx2.Limits(max_connections=streams + 16, max_keepalive_connections=16)
            self._own = DefaultAsyncHttpxClient(limits=limits)
            self.streams = client.copy(http_client=self._own, max_retries=0)
        self.max_streams = default if max_streams is None else max_streams

    def __repr__(self) -> str:
        return f"<Clients {self.requests.base_url}, {self.max_streams} streams>"

    async def aclose(self) -> None:
        """Close the http client we made; the user's is the user's, unless it was handed over."""
        if self._own is not None:
            await self._own.aclose()
        if self._closed_with_us is not None:
            await self._closed_with_us.close()


def transport_of(client: AsyncOpenAI) -> httpx2.AsyncClient:
    """Return the http client inside an official client.

    The one private access of this project, kept here with a test of its own: the client has no public way to tell
    whether its transport is the default one.

    Raises:
        ConfigurationError: the client is not an AsyncOpenAI, or carries a legacy `httpx` client.
    """
    if not isinstance(client, AsyncOpenAI):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise ConfigurationError(
            f"Runtime needs an openai.AsyncOpenAI client, not {type(client).__name__}; "
            "a synchronous client cannot follow streams"
        )
    inner = client._client  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if not isinstance(inner, httpx2.AsyncClient):  # pyright: ignore[reportUnnecessaryIsInstance] - it may be legacy
        raise ConfigurationError(
            f"the client's http_client is a {type(inner).__module__}.{type(inner).__name__}; openai 3 speaks through "
            "httpx2: pass AsyncOpenAI(http_client=httpx2.AsyncClient(...)) or leave it out"
        )
    return inner


def is_default_transport(inner: httpx2.AsyncClient) -> bool:
    """Whether the official client made this http client itself."""
    return type(inner).__module__.startswith("openai.") and type(inner).__name__ == "AsyncHttpxClientWrapper"
