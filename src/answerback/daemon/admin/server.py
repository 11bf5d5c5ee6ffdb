"""The admin's routes, and serving them in the daemon's own event loop: a stuck loop then fails its probe by itself."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from answerback.daemon.admin.actions import Actions
from answerback.daemon.admin.guard import Guard
from answerback.daemon.admin.replies import on_error, refusal, reply
from answerback.daemon.admin.streams import Streams
from answerback.daemon.condition import Condition
from answerback.daemon.metrics import CONTENT_TYPE, Metrics
from answerback.errors import AnswerbackError
from answerback.harness.bare import BareBody
from answerback.harness.tcp import TCPServer

GRACE = 0.4
"""Seconds open requests get at the end; their streams have been closed by then."""


class Probes:
    """Handlers of the routes that only look."""

    def __init__(self, condition: Condition, metrics: Metrics) -> None:
        self._condition = condition
        self._metrics = metrics

    def __repr__(self) -> str:
        return f"<Probes of {self._condition!r}>"

    async def live(self, _: Request) -> Response:
        """Whether the process should be left alone: its loop turns. Never depends on the API."""
        alive = self._condition.alive
        return reply({"alive": alive}, status=200 if alive else 503)

    async def ready(self, _: Request) -> Response:
        """Whether work may be expected of it."""
        reasons = await self._condition.unready()
        return reply({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def health(self, _: Request) -> Response:
        """Everything at a glance."""
        return reply(self._condition.health())

    async def metrics(self, _: Request) -> Response:
        """The metrics, as Prometheus reads them."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def create_admin(probes: Probes, actions: Actions, streams: Streams, *, token: str, host: str) -> Starlette:
    """Put the routes behind the guard."""
    reads = {"/livez": probes.live, "/readyz": probes.ready, "/healthz": probes.health, "/metrics": probes.metrics}
    calls = {"decide": actions.decide, "approve": actions.approve, "reject": actions.reject, "resend": actions.resend}
    sessions = {
        "cancel": actions.cancel,
        "pause": actions.pause,
        "resume": actions.resume,
        "wake": actions.wake,
        "messages": actions.send,
        "wait": actions.wait,
    }
    return Starlette(
        routes=[
            *(Route(path, handler) for path, handler in reads.items()),
            Route("/events", streams.tail),
            Route("/sessions/{name:path}/events", streams.session),
            Route("/sessions/{name:path}/approvals", actions.waiting),
            Route("/sessions", actions.open, methods=["POST"]),
            Route("/drain", actions.drain, methods=["POST"]),
            *(Route(f"/calls/{{name:path}}/{verb}", do, methods=["POST"]) for verb, do in calls.items()),
            *(Route(f"/sessions/{{name:path}}/{verb}", do, methods=["POST"]) for verb, do in sessions.items()),
        ],
        middleware=[Middleware(Guard, token=token, host=host)],
        exception_handlers={AnswerbackError: on_error, Exception: on_error, 404: _no_route, 405: _no_route},
    )


async def _no_route(request: Request, _: Exception) -> Response:
    return refusal(404, "NoRoute", f"There is no {request.method} {request.url.path} here.")


@asynccontextmanager
async def serving(admin: Starlette, listener: socket.socket) -> AsyncGenerator[str]:
    """Serve on a socket for the length of a block; yields the origin. Must run on asyncio."""
    config = uvicorn.Config(
        admin,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,  # type: ignore[arg-type]  # declared as int, handed to asyncio.wait_for as it is
    )
    server = TCPServer(config)
    bare = BareBody()
    host, port = listener.getsockname()[:2]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.ready.wait()
        with bare:
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server.should_exit = True
    bare.reraise()
