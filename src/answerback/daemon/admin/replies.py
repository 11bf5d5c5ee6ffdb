"""How the admin reads and answers: small JSON bodies in, JSON out, errors with a type, a message and a status."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from answerback.errors import (
    AnswerbackError,
    ApiError,
    ConfigurationError,
    DecisionError,
    RuntimeStateError,
    SessionError,
    StoreError,
    UnknownCallError,
)

BODY_LIMIT = 1_000_000
"""Bytes of a request's body; the longest that makes sense is the output of a decided call."""


class BodyError(AnswerbackError):
    """Raised for a body that is too large or no JSON object.

    Attributes:
        status: what to answer.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnknownSessionError(AnswerbackError):
    """Raised for a session nobody knows by this name."""


async def read_object(request: Request) -> dict[str, Any]:
    """Return a request's JSON object; an absent body is an empty one.

    Raises:
        BodyError: it is too large, cut short, or no JSON object.
    """
    content = bytearray()
    try:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                content += chunk
                if len(content) > BODY_LIMIT:
                    raise BodyError(f"the body has more than {BODY_LIMIT} bytes", status=413)
    except ClientDisconnect:
        raise BodyError("the body was cut short", status=400) from None
    if not content:
        return {}
    try:
        # The standard module: it keeps what JSON of any origin can hold, such as lone surrogates.
        found: object = json.loads(content)
    except ValueError:
        raise BodyError("the body is no JSON", status=400) from None
    if not isinstance(found, dict):
        raise BodyError("the body must be a JSON object", status=400)
    return cast("dict[str, Any]", found)


def text_of(body: dict[str, Any], name: str) -> str | None:
    """Return a text of a body, or None where it is absent or null.

    Raises:
        BodyError: it is something else.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BodyError(f"{name} must be a text", status=400)
    return value


def reply(value: Any, *, status: int = 200) -> Response:
    """Build a JSON answer."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def refusal(status: int, kind: str, message: str) -> Response:
    """Build the answer to something that was not done."""
    return reply({"error": {"type": kind, "message": message}}, status=status)


async def on_error(_: Request, error: Exception) -> Response:
    """Answer one of our errors with its text; those of others by class only, because their text may carry values."""
    if not isinstance(error, AnswerbackError):
        return refusal(500, type(error).__name__, "The daemon failed at this; its log says where.")
    # What the API says of a refusal may quote what it was sent.
    text = (
        f"the Agents API refused it: HTTP {error.status} {error.code or ''}"
        if isinstance(error, ApiError)
        else str(error)
    )
    return refusal(_status(error), type(error).__name__, text.strip())


def _status(error: AnswerbackError) -> int:
    match error:
        case BodyError():
            return error.status
        case UnknownCallError() | UnknownSessionError():
            return 404
        case DecisionError() | SessionError():
            return 409
        case ConfigurationError():
            return 400
        case ApiError():
            return 502
        case StoreError() | RuntimeStateError():
            return 503
        case _:
            return 500
