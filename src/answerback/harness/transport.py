"""A streaming in-process transport: httpx2 on one side, an ASGI app on the other, no sockets.

The stock ASGI transport of httpx2 collects the whole response first, so an endless event stream never begins.
Here the app runs in a task of its own, bodies stream both ways, a client that goes away is seen by the app as a
disconnect (and, as under a real server, does not cancel it), and read timeouts count as they do on a socket.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import anyio
import anyio.abc
import httpx2
from starlette.types import ASGIApp, Message

logger = logging.getLogger("answerback.harness.transport")

WINDOW = 1024 * 1024
"""Bytes the client may leave unread before the app's `send` waits, as a socket's buffers would have it."""

T = TypeVar("T")


class StreamingASGITransport(httpx2.AsyncBaseTransport):
    """Carry requests to an ASGI app in this process.

    Args:
        app: the app.
        tasks: where its tasks run; the transport works until this group ends.
        client: the address the app sees.
    """

    def __init__(self, app: ASGIApp, *, tasks: anyio.abc.TaskGroup, client: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._app = app
        self._tasks = tasks
        self._client = client
        self._requests = 0

    def __repr__(self) -> str:
        return f"<StreamingASGITransport {self._requests} requests>"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response as soon as it has started.

        Raises:
            httpx2.ReadTimeout: when the app is silent for longer than the request's read timeout.
            httpx2.RemoteProtocolError: when the app broke the connection.
        """
        self._requests += 1
        exchange = Exchange(request)
        self._tasks.start_soon(self._serve, exchange, self._scope(request, exchange))
        try:
            await exchange.started()
        except BaseException:
            exchange.disconnect()
            raise
        return httpx2.Response(exchange.status, headers=exchange.headers, stream=ResponseBody(exchange))

    def _scope(self, request: httpx2.Request, exchange: Exchange) -> dict[str, Any]:
        path, _, query = request.url.raw_path.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "server": (request.url.host, request.url.port),
            "client": self._client,
            "root_path": "",
            "extensions": {"answerback.abort": {"abort": exchange.abort}},
        }

    async def _serve(self, exchange: Exchange, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientGoneError:
            logger.debug("the client went away", extra={"path": scope["path"]})
        except Exception:
            logger.exception("the app failed", extra={"path": scope["path"]})
        finally:
            exchange.app_returned()


class ClientGoneError(OSError):
    """Raised to the app when it sends to a client that went away (ASGI wants an OSError)."""


class Exchange:
    """One request and its response on their way between client and app."""

    def __init__(self, request: httpx2.Request) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        timeouts = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
        self._read_timeout = timeouts.get("read")
        self._request_body: AsyncIterator[bytes] | None = aiter(cast("httpx2.AsyncByteStream", request.stream))
        self._started = False
        self._finished = False
        self._broken = False
        self._gone = False
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._readable: anyio.Event | None = None
        self._writable: anyio.Event | None = None
        self._disconnected = anyio.Event()

    def __repr__(self) -> str:
        state = "broken" if self._broken else "finished" if self._finished else "open" if self._started else "waiting"
        return f"<Exchange {state}, {self._unread} bytes unread{', client gone' if self._gone else ''}>"

    # -- the app's side ---------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Give the app the request body, piece by piece, then the disconnect."""
        body = self._request_body
        if body is not None:
            chunk = await anext(body, None)
            if chunk is None:
                self._request_body = None
            return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take the app's response; waits while the client leaves too much unread."""
        if self._gone or self._broken:
            raise ClientGoneError("the client is gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
            self._started = True
        else:
            body = message.get("body", b"")
            if body:
                self._chunks.append(body)
                self._unread += len(body)
            self._finished = not message.get("more_body", False)
            if self._finished:
                # The response is over, so whoever still waits for the client's disconnect may go.
                self._disconnected.set()
        self._wake()
        while self._unread > WINDOW and not self._gone:
            self._writable = anyio.Event()
            await self._writable.wait()

    def abort(self) -> None:
        """Break the connection: the client gets an error after what it was already sent."""
        self._broken = True
        self._disconnected.set()
        self._wake()

    def app_returned(self) -> None:
        """Note that the app is done; a response it did not complete is a broken one."""
        if not self._finished:
            self.abort()

    def _wake(self) -> None:
        if self._readable is not None:
            self._readable.set()

    # -- the client's side ------------------------------------------------------------------------------------------

    async def started(self) -> None:
        """Wait for the response to start."""
        while not self._started:
            if self._broken:
                raise httpx2.RemoteProtocolError("The app closed the connection without a response.")
            await self._wait()

    async def chunk(self) -> bytes | None:
        """Return the next piece of the body; None at its end."""
        while not self._chunks:
            if self._broken:
                raise httpx2.RemoteProtocolError("The app closed the connection before the response was complete.")
            if self._finished:
                return None
            await self._wait()
        chunk = self._chunks.popleft()
        self._unread -= len(chunk)
        if self._writable is not None and self._unread <= WINDOW:
            self._writable.set()
        return chunk

    def disconnect(self) -> None:
        """Note that the client has gone away."""
        self._gone = True
        self._disconnected.set()
        if self._writable is not None:
            self._writable.set()

    async def _wait(self) -> None:
        self._readable = anyio.Event()
        if self._read_timeout is None:
            await self._readable.wait()
            return
        with anyio.move_on_after(self._read_timeout):
            await self._readable.wait()
            return
        raise httpx2.ReadTimeout("The app was silent for longer than the read timeout.")


class ResponseBody(httpx2.AsyncByteStream):
    """The body of a response, read as it comes. An iterator by hand: a generator left alone would leak on trio."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<ResponseBody {self._exchange!r}>"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece."""
        chunk = await self._exchange.chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Close the response; the app sees the client go away."""
        self._exchange.disconnect()
