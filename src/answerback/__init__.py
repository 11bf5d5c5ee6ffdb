"""answerback: the durable runtime that answers an agent's function calls, each one once.

Names are imported when they are first used: `answerback --help` then needs neither openai nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from answerback.actors.discovery import Discover
    from answerback.actors.kernel import DrainReport
    from answerback.actors.turns import TurnResult
    from answerback.app import App
    from answerback.errors import (
        AnswerbackError,
        ApiError,
        ConfigurationError,
        DecisionError,
        InputRefusedError,
        RetryLater,
        SessionError,
        SessionFailedError,
        SessionGoneError,
        SessionQuarantinedError,
        StoreError,
        StoreLockedError,
        ToolDefinitionError,
        ToolError,
        UnknownCallError,
    )
    from answerback.handlers.context import CallLogFilter, ToolContext
    from answerback.handlers.policy import Failed, Happened, NotHappened, Retry, Unknown
    from answerback.handlers.registry import Handlers
    from answerback.handlers.schema import function_schema
    from answerback.handlers.secrets import Secret
    from answerback.handlers.tool import Tool
    from answerback.model import CallRecord, CallState
    from answerback.runtime import Runtime
    from answerback.sessions import SessionRef
    from answerback.store.memory import MemoryStore
    from answerback.store.sqlite import SQLiteStore

__version__ = "0.1.0"

_HOMES = {
    "answerback.actors.discovery": ("Discover",),
    "answerback.actors.kernel": ("DrainReport",),
    "answerback.actors.turns": ("TurnResult",),
    "answerback.app": ("App",),
    "answerback.errors": (
        "AnswerbackError",
        "ApiError",
        "ConfigurationError",
        "DecisionError",
        "InputRefusedError",
        "RetryLater",
        "SessionError",
        "SessionFailedError",
        "SessionGoneError",
        "SessionQuarantinedError",
        "StoreError",
        "StoreLockedError",
        "ToolDefinitionError",
        "ToolError",
        "UnknownCallError",
    ),
    "answerback.handlers.context": ("CallLogFilter", "ToolContext"),
    "answerback.handlers.policy": ("Failed", "Happened", "NotHappened", "Retry", "Unknown"),
    "answerback.handlers.registry": ("Handlers",),
    "answerback.handlers.schema": ("function_schema",),
    "answerback.handlers.secrets": ("Secret",),
    "answerback.handlers.tool": ("Tool",),
    "answerback.model": ("CallRecord", "CallState"),
    "answerback.runtime": ("Runtime",),
    "answerback.sessions": ("SessionRef",),
    "answerback.store.memory": ("MemoryStore",),
    "answerback.store.sqlite": ("SQLiteStore",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    # run it
    "Runtime",
    "App",
    "Discover",
    "SessionRef",
    "TurnResult",
    "DrainReport",
    # tools
    "Handlers",
    "Tool",
    "ToolContext",
    "CallLogFilter",
    "Retry",
    "Secret",
    "function_schema",
    # what a handler raises on purpose
    "ToolError",
    "RetryLater",
    # decisions
    "Happened",
    "Failed",
    "NotHappened",
    "Unknown",
    # stores and their records
    "SQLiteStore",
    "MemoryStore",
    "CallRecord",
    "CallState",
    # errors
    "AnswerbackError",
    "ApiError",
    "ConfigurationError",
    "DecisionError",
    "InputRefusedError",
    "SessionError",
    "SessionFailedError",
    "SessionGoneError",
    "SessionQuarantinedError",
    "StoreError",
    "StoreLockedError",
    "ToolDefinitionError",
    "UnknownCallError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'answerback' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
