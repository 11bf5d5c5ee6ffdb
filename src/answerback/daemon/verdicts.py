"""The words for a verdict, as the command line and the admin say them."""

from __future__ import annotations

from typing import Any

from answerback.errors import ConfigurationError
from answerback.handlers.policy import Failed, Happened, NotHappened, Unknown, Verdict

VERDICTS = ("happened", "failed", "not_happened", "unknown")


def verdict_of(word: str, *, output: Any = None, text: str | None = None) -> Verdict[Any]:
    """Return the verdict of a word; `output` goes with happened, `text` with failed.

    Raises:
        ConfigurationError: the word is none of `VERDICTS`, or failed comes without a text.
    """
    match word:
        case "happened":
            return Happened(output)
        case "failed" if text:
            return Failed(text)
        case "failed":
            raise ConfigurationError("failed needs a text for the model")
        case "not_happened":
            return NotHappened()
        case "unknown":
            return Unknown()
        case _:
            raise ConfigurationError(f"verdict must be one of {', '.join(VERDICTS)}")
