"""The daemon's log: structlog renders what the library logs with the standard module. Ids, counts and times, no values.

What the library logs names no values. Other packages are not so careful: the HTTP client logs whole bodies at DEBUG,
and anybody's traceback may quote an argument. So records of those packages pass from WARNING on, and an exception is
written as its class and place, never as its text.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from answerback.actors.supervisor import leaves, places

TALKATIVE = ("openai", "httpx2", "httpcore2", "uvicorn", "asyncio", "starlette")
"""Packages whose records below WARNING are left out, whatever their own settings say."""
IDS = frozenset(
    {
        "actors",
        "age",
        "app",
        "attempt",
        "call",
        "call_id",
        "calls",
        "crashes",
        "cut_short",
        "error",
        "host",
        "outcome",
        "owner",
        "path",
        "pid",
        "queued",
        "reason",
        "ref",
        "running",
        "seconds",
        "session_id",
        "sessions",
        "signal",
        "source",
        "state",
        "target",
        "tasks",
        "tool",
        "turn_id",
        "unsent",
        "url",
    }
)
"""Members of `extra` that are written; others are an application's own and may be anything."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class QuietFilter(logging.Filter):
    """Lets talkative packages speak from WARNING on, in their own words only.

    asyncio quotes tasks with the exceptions they ended in, on the lines below the first and in the arguments.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if record.name.partition(".")[0] not in TALKATIVE:
            return True
        record.msg, record.args = str(record.msg).partition("\n")[0], None
        return record.levelno >= logging.WARNING


def configure(*, level: str = "info", style: str = "auto", stream: TextIO | None = None) -> logging.Handler:
    """Send every record of the process to `stream` (stderr), as JSON lines or for a person; return the handler.

    "auto" is for a person on a terminal and JSON elsewhere. NO_COLOR is honoured.
    """
    target: TextIO = stream if stream is not None else sys.stderr
    terminal = target.isatty()
    for_person = style == "console" or (style == "auto" and terminal)
    colors = terminal and not os.environ.get("NO_COLOR")
    renderer: Callable[..., Any]
    if for_person:
        renderer = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=28)
    else:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(allow=sorted(IDS)),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[_place_of_exception, structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    handler.addFilter(QuietFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return handler


def _place_of_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by the classes and places of what it holds."""
    info = event.pop("exc_info", None)
    event.pop("stack_info", None)
    error: BaseException | None = info if isinstance(info, BaseException) else None
    if isinstance(info, tuple):
        error = cast("ExceptionInfo", info)[1]
    if error is not None:
        names = ", ".join(sorted({type(leaf).__name__ for leaf in leaves(error)}))
        event["exception"] = f"{names} at {places(error)}"
    return event


def describe(error: BaseException) -> str:
    """Return the classes and places of an exception, which may be told to anybody."""
    return f"{', '.join(sorted({type(leaf).__name__ for leaf in leaves(error)}))} at {places(error)}"
