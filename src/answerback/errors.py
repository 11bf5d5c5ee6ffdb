"""Every exception answerback raises, under one root.

Attributes carry what a program needs; the text says what to do next. No text contains argument or result values.
Only `ToolError` carries words meant for the model; every other exception a handler raises stays in this process.
"""

from __future__ import annotations


class AnswerbackError(Exception):
    """The root of every error this library raises."""


class ConfigurationError(AnswerbackError):
    """Raised while composing a program: a bad option, a bad tool, a client that cannot be used."""


class ToolDefinitionError(ConfigurationError):
    """Raised at registration for a function that cannot become a tool; names the tool and the parameter.

    Attributes:
        tool: the name the tool would have had.
        parameter: the parameter at fault, or None when it is the tool as a whole.
    """

    def __init__(self, message: str, *, tool: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool
        self.parameter = parameter


class ToolError(AnswerbackError):
    """Raise this in a handler to tell the model something; its text is sent as it is, with `success: false`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class RetryLater(AnswerbackError):  # noqa: N818 - a handler raises it as a request, it is not a failure
    """Raise this in a handler that has done nothing yet and may be started again after a pause.

    Args:
        after: seconds to wait before the next attempt; None leaves it to the tool's `Retry` policy.
    """

    def __init__(self, after: float | None = None) -> None:
        super().__init__(f"retry after {after} s" if after is not None else "retry later")
        self.after = after


class ArgumentsError(AnswerbackError):
    """Raised when a call's arguments do not fit the tool; `text` names paths and rules, never values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class OutputError(AnswerbackError):
    """Raised when a handler's return value cannot be sent as it is; `text` says what kind of value it was."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class StoreError(AnswerbackError):
    """The root of the store's errors."""


class StoreLockedError(StoreError):
    """Raised at open when another process owns the store file.

    Attributes:
        path: the store file.
        owner: what the lock file says of the owner: "host X pid Y since Z".
    """

    def __init__(self, message: str, *, path: str, owner: str) -> None:
        super().__init__(message)
        self.path = path
        self.owner = owner


class StoreVersionError(StoreError):
    """Raised at open for a file written by a newer release, or one that is not a store at all."""


class StoreCorruptError(StoreError):
    """Raised at open for a damaged file, or later when SQLite reports corruption twice."""


class StoreClosedError(StoreError):
    """Raised for a write or a read after the store was closed."""


class StoreUnavailableError(StoreError):
    """Raised when the store cannot keep its promises here: a read-only file, a network file system."""


class ApiError(AnswerbackError):
    """An HTTP answer of the Agents API that is not a success, or no answer at all.

    Attributes:
        status: the HTTP status, or None when there was no answer (connection failed, timed out).
        code: `error.code` of the envelope, or None.
        retry_after: seconds the server asked us to wait, or None.
    """

    def __init__(
        self, message: str, *, status: int | None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class SessionError(AnswerbackError):
    """The root of what goes wrong with one session.

    Attributes:
        session_id: the session.
    """

    def __init__(self, message: str, *, session_id: str) -> None:
        super().__init__(message)
        self.session_id = session_id


class SessionFailedError(SessionError):
    """Raised by `wait` when the session itself ended as failed; `error` is the server's text, if it gave one."""

    def __init__(self, message: str, *, session_id: str, error: str | None = None) -> None:
        super().__init__(message, session_id=session_id)
        self.error = error


class SessionGoneError(SessionError):
    """Raised when the server answers 404 for a session: it was deleted, or belongs to another project."""


class SessionQuarantinedError(SessionError):
    """Raised when the session's actor crashed too often and was set aside; its siblings go on."""


class InputRefusedError(SessionError):
    """Raised when the server definitely refused an input (a message), with the server's reason in `code`."""

    def __init__(self, message: str, *, session_id: str, code: str | None = None) -> None:
        super().__init__(message, session_id=session_id)
        self.code = code


class UnknownCallError(AnswerbackError):
    """Raised when a call id matches no call, or matches several; the text lists the candidates."""


class DecisionError(AnswerbackError):
    """Raised when a decision is made about a call that is not waiting for one; the text names its state."""


class RuntimeStateError(AnswerbackError):
    """Raised when a Runtime, store or harness is used outside its `async with` block, or from another task."""
