"""Who may ask: the Host header must be ours, and everything but the two probes needs the token.

A page in a browser can be made to send requests to a loopback port (DNS rebinding); its Host header gives it away.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from answerback.daemon.admin.replies import refusal

OPEN = frozenset({"/livez", "/readyz"})
"""Paths that tell nothing but whether we are well."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound to


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        token: what `Authorization: Bearer` must carry.
        host: the address that is bound.
    """

    def __init__(self, app: ASGIApp, *, token: str, host: str) -> None:
        self._app = app
        self._token = token.encode()
        self._host = host

    def __repr__(self) -> str:
        return f"<Guard of {self._host}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it with a refusal."""
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refused is None else refused)(scope, receive, send)

    def _refusal(self, scope: Mapping[str, Any]) -> Response | None:
        headers = Headers(raw=scope["headers"])
        if not self._is_ours(headers.get("host", "")):
            return refusal(421, "ForeignHost", "This Host is not served here; use the address of the daemon itself.")
        if scope["path"] in OPEN or hmac.compare_digest(_bearer(headers), self._token):
            return None
        return refusal(401, "TokenRequired", "Send the token of <db>.daemon.json as Authorization: Bearer.")

    def _is_ours(self, header: str) -> bool:
        name = _name(header)
        if name in LOOPBACK or name == self._host.lower():
            return True
        # Bound to every address, we do not know which one was meant; a name could be anybody's, a number is a number.
        return self._host in WILDCARDS and _is_number(name)


def _bearer(headers: Headers) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.encode() if scheme.lower() == "bearer" else b""


def _name(header: str) -> str:
    """Return the host of a Host header, without port and brackets."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
