"""The exit codes of the program, and which error gives which."""

from __future__ import annotations

from answerback.errors import AnswerbackError, ConfigurationError, StoreError

OK = 0
FAILED = 1
USAGE = 2
NOT_STARTED = 3
"""A port is taken, a store is locked, missing or unreadable, an import failed, no daemon is there to be asked."""
DRAINED_LATE = 4
NEEDS_A_PERSON = 5


class StartError(AnswerbackError):
    """Raised when a command was understood and cannot start: an import that fails, no key, no daemon."""


class RemoteError(AnswerbackError):
    """Raised when a daemon was asked for something and said no; the text is the daemon's."""


def exit_code(error: AnswerbackError) -> int:
    """Return the code the program ends with after this error."""
    match error:
        case StoreError() | StartError():
            return NOT_STARTED
        case ConfigurationError(__cause__=OSError()):
            # The words were right and the system refused: a port that is taken, a file that cannot be read.
            return NOT_STARTED
        case ConfigurationError():
            return USAGE
        case _:
            return FAILED
