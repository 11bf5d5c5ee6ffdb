"""The responses of the harness: JSON, refusals, and what a fault rule answers instead."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from answerback.harness.errors import WireError
from answerback.harness.faults import Do
from answerback.harness.stream import Reset


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Build a JSON response."""
    return Response(msgspec.json.encode(value), status_code=status, headers=headers, media_type="application/json")


def error_response(error: WireError) -> Response:
    """Build the response of a refusal."""
    return json_response(error.envelope, status=error.status, headers=error.headers)


def replaces(do: Do) -> bool:
    """Tell whether a fault takes the place of the answer."""
    return do.status is not None or do.reset


def fault_response(do: Do) -> Response:
    """Build the answer a fault gives."""
    if do.status is None:
        return Reset()
    body = do.body
    if body is None:
        text = f"A fault rule answered with {do.status}."
        body = WireError(text, status=do.status, type="server_error", code="fault").envelope
    return json_response(body, status=do.status, headers=do.headers)
