"""The ASGI app over one core: the gate every request passes, the routes, and refusals in the service's envelope."""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import cast

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from answerback.harness.control import Control, control_routes
from answerback.harness.core import Core
from answerback.harness.errors import WireError, bad_beta_header, not_found, unauthorized, unsupported
from answerback.harness.responses import error_response
from answerback.harness.routes import Routes

LATER_PATHS = {
    "/v1/agents/environments": "environments",
    "/v1/agents/automations": "automations",
    "/v1/vaults": "vaults",
}
"""Parts of the API this harness does not have; saved agents are every other path under /v1/agents."""


def create_app(core: Core) -> ASGIApp:
    """Compose the app; the core must be running while it serves."""
    routes = [*Routes(core).table(), *control_routes(core, Control(core))]
    inner = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_method})
    return Gate(inner, core)


class Gate:
    """Check the beta header, then the key, and stamp each response as the service does."""

    def __init__(self, app: ASGIApp, core: Core) -> None:
        self._app = app
        self._core = core

    def __repr__(self) -> str:
        return f"<Gate before {self._core!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            return
        started = self._core.clock.now()

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = self._core.randomness.request_id()
                headers["openai-version"] = "2020-10-01"
                headers["openai-processing-ms"] = str(int((self._core.clock.now() - started) * 1000))
            await send(message)

        refusal = self._refusal(scope)
        app: ASGIApp = self._app if refusal is None else error_response(refusal)
        await app(scope, receive, stamped)

    def _refusal(self, scope: Scope) -> WireError | None:
        path = str(scope["path"])
        if path.startswith("/_harness"):
            return None if _is_loopback(scope) else not_found()
        if not path.startswith("/v1/"):
            return not_found()
        headers = Headers(scope=scope)
        if headers.getlist("openai-beta") != ["agents=v1"]:
            return bad_beta_header()
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key or (self._core.api_key is not None and key != self._core.api_key):
            return unauthorized()
        return None


def _is_loopback(scope: Scope) -> bool:
    client = cast("tuple[str, int] | None", scope.get("client"))
    if client is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _no_route(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's signature
    path = request.url.path
    feature = next((name for prefix, name in LATER_PATHS.items() if path.startswith(prefix)), None)
    if feature is None and path.startswith("/v1/agents") and not path.startswith("/v1/agents/sessions"):
        feature = "saved agents"
    if feature is None and path.startswith("/v1/agents/sessions/") and path.endswith("/traces"):
        feature = "traces"
    return error_response(not_found() if feature is None else unsupported(feature))


async def _no_method(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's signature
    allow = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    refusal = WireError(
        "Method not allowed for this path.",
        status=HTTPStatus.METHOD_NOT_ALLOWED,
        type="invalid_request_error",
        code="unsupported_operation",
        headers=allow,
    )
    return error_response(refusal)
