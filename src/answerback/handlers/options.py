"""The options of a tool, checked once when the tool is made."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypedDict, cast, get_args

import msgspec

from answerback.errors import ToolDefinitionError
from answerback.handlers.context import ToolContext
from answerback.handlers.policy import Retry
from answerback.model import Effects, OnInterrupted

Approval: TypeAlias = "bool | Callable[[ToolContext[Any], Mapping[str, Any]], bool | Awaitable[bool]]"
Enabled: TypeAlias = "bool | Callable[[], bool | Awaitable[bool]]"


class ToolOptions(TypedDict, total=False):
    """What every tool may be given, whether it comes from a function, a schema or another SDK.

    effects: what running it again would do; "once" unless said otherwise.
    timeout: seconds a call may take, 600 by default.
    retry: when an exception starts it again; None never does.
    max_concurrency: how many calls of it may run at once; None leaves it to the runtime.
    on_interrupted: what follows a call nobody can tell the outcome of; None leaves it to the runtime.
    settle: seconds after the start before the verify hook may be asked, 30 by default: a request that was on its way
        when the process died may still arrive.
    needs_approval: whether a person must say yes before a call is started: True, or a function of the context and the
        dict of validated arguments that says so for each call. What it raises counts as yes.
    is_enabled: whether the model may use it now; a function is asked each time.
    defer_loading: hide it until tool search loads it.
    run_async: let the agent go on without waiting for the result (`async` on the wire).
    version: change it when the handler means something else under the same schema.
    """

    effects: Effects
    timeout: float
    retry: Retry | None
    max_concurrency: int | None
    on_interrupted: OnInterrupted | None
    settle: float
    needs_approval: Approval
    is_enabled: Enabled
    defer_loading: bool
    run_async: bool
    version: str


class FunctionOptions(ToolOptions, total=False):
    """The options of a tool made from a function.

    name: the name the model sees; the function's own by default.
    description: what the model is told; the docstring without its sections by default.
    """

    name: str | None
    description: str | None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options."""

    effects: Effects = "once"
    timeout: float = 600.0
    retry: Retry | None = None
    max_concurrency: int | None = None
    on_interrupted: OnInterrupted | None = None
    settle: float = 30.0
    needs_approval: Approval = False
    is_enabled: Enabled = True
    defer_loading: bool = False
    run_async: bool = False
    version: str = ""


def checked(tool: str, options: Mapping[str, Any]) -> Settings:
    """Return the options with defaults.

    Raises:
        ToolDefinitionError: naming the option that is unknown or out of range.
    """
    unknown = sorted(options.keys() - set(Settings.__struct_fields__))
    if unknown:
        raise ToolDefinitionError(f"Tool {tool!r}: there is no option {unknown[0]!r}.", tool=tool)
    settings = Settings(**options)
    wrong = _first_wrong(settings)
    if wrong is not None:
        raise ToolDefinitionError(f"Tool {tool!r}: {wrong}.", tool=tool)
    return settings


def _first_wrong(settings: Settings) -> str | None:
    # Options come from callers without a type checker too, so what the annotations promise is looked at again.
    retry, enabled, version = cast(
        "tuple[object, object, object]", (settings.retry, settings.is_enabled, settings.version)
    )
    approval = cast("object", settings.needs_approval)
    switches = cast("tuple[object, object]", (settings.defer_loading, settings.run_async))
    choices = ", ".join(get_args(Effects))
    policies = ", ".join(get_args(OnInterrupted))
    checks: tuple[tuple[bool, str], ...] = (
        (settings.effects in get_args(Effects), f"effects must be one of {choices}"),
        (_seconds(settings.timeout) and settings.timeout > 0, "timeout must be a finite number of seconds above 0"),
        (_seconds(settings.settle) and settings.settle >= 0, "settle must be a finite number of seconds, 0 or more"),
        (retry is None or isinstance(retry, Retry), "retry must be a Retry(...) or None"),
        (_count(settings.max_concurrency), "max_concurrency must be a whole number of 1 or more, or None"),
        (
            settings.on_interrupted is None or settings.on_interrupted in get_args(OnInterrupted),
            f"on_interrupted must be one of {policies}, or None",
        ),
        (
            isinstance(approval, bool) or callable(approval),
            "needs_approval must be True, False or a function of the context and the arguments",
        ),
        (
            isinstance(enabled, bool) or callable(enabled),
            "is_enabled must be True, False or a function without arguments",
        ),
        (isinstance(switches[0], bool), "defer_loading must be True or False"),
        (isinstance(switches[1], bool), "run_async must be True or False"),
        (isinstance(version, str), "version must be a string"),
    )
    return next((message for holds, message in checks if not holds), None)


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
