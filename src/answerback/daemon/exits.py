"""The exit codes of the program, and which error gives which."""

from __future__ import annotations

from answerback.errors import AnswerbackError, ConfigurationError, StoreError

OK = 0
FAILED = 1
USAGE = 2
NOT_STARTED = 3
"""A port is taken, a store is locked, missing or unreadable, an import failed."""
DRAINED_LATE = 4
NEEDS_A_PERSON = 5


def exit_code(error: AnswerbackError) -> int:
    """Return the code the program ends with after this error."""
    match error:
        case StoreError():
            return NOT_STARTED
        case ConfigurationError(__cause__=OSError()):
            # The words were right and the system refused: a port that is taken, a file that cannot be read.
            return NOT_STARTED
        case ConfigurationError():
            return USAGE
        case _:
            return FAILED
