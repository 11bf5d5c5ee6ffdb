"""The refusals of the wire, as one exception that knows its status and its envelope."""

from __future__ import annotations

from typing import Any

from answerback.errors import AnswerbackError, ConfigurationError


class WireError(AnswerbackError):
    """Raised inside the harness to answer a request with an error envelope.

    Attributes:
        status: the HTTP status.
        type: `error.type`.
        code: `error.code`, or None (the service sends null for authentication failures).
        param: the JSON path at fault, or None.
        headers: further response headers.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str,  # noqa: A002 - the wire calls it so
        code: str | None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def envelope(self) -> dict[str, Any]:
        """The response body: every key present, null where there is nothing to say."""
        return {"error": {"message": self.message, "type": self.type, "code": self.code, "param": self.param}}


class ScriptError(ConfigurationError):
    """Raised for a script, a fault or a knob that cannot be used; the text names the place."""


def invalid(message: str, *, param: str | None = None) -> WireError:
    """Build the 400 of a request that does not fit the contract."""
    kind = "invalid_request_error"
    return WireError(message, status=400, type=kind, code=kind, param=param)


def unsupported(feature: str, *, param: str | None = None) -> WireError:
    """Build the 400 of a feature the service has and this harness has not; it is named, never ignored."""
    message = f"This harness does not support {feature}."
    return WireError(message, status=400, type="invalid_request_error", code="unsupported_operation", param=param)


def not_found(message: str = "The requested resource was not found.") -> WireError:
    """Build the 404; malformed, missing and foreign ids are not told apart (observed)."""
    return WireError(message, status=404, type="not_found_error", code="not_found_error")


def conflict(message: str) -> WireError:
    """Build the 409; its type and code are always the same and it never has a param (observed)."""
    return WireError(message, status=409, type="conflict_error", code="conflict_error")


def bad_beta_header() -> WireError:
    """Build the 400 for a request without exactly one right beta header (observed text)."""
    message = "To access the Agents API, set the 'OpenAI-Beta' header to 'agents=v1'."
    return WireError(message, status=400, type="invalid_beta", code="invalid_beta")


def unauthorized() -> WireError:
    """Build the 401; its code is null on beta routes (observed)."""
    message = "Incorrect API key provided. Use the key the harness was started with (--api-key)."
    return WireError(message, status=401, type="invalid_request_error", code=None)
