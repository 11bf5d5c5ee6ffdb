"""How a handler or a hook is called with checked arguments: by name, or with the whole object at once."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, Union, cast, get_args, get_origin

import msgspec

from answerback.errors import ToolDefinitionError
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.context import ToolContext
from answerback.handlers.signature import EMPTY, Signature, is_coroutine, read_signature


class Callee(msgspec.Struct, frozen=True, kw_only=True):
    """A function and how it takes its arguments.

    `context` names its ToolContext parameter. `whole` names the one parameter that takes the raw object, for tools
    with a ready schema; None means that each argument has a parameter of its own.
    """

    function: Callable[..., Any]
    signature: Signature
    whole: str | None
    is_coroutine: bool

    def call(self, bound: BoundArguments, context: ToolContext[Any]) -> Any:
        """Call it; returns what it returns, which for a coroutine function is a coroutine."""
        keywords: dict[str, Any] = dict(bound.values) if self.whole is None else {self.whole: dict(bound.values)}
        if self.signature.context is not None:
            keywords[self.signature.context] = context
        return self.function(**keywords)


def by_name(function: Callable[..., Any], signature: Signature) -> Callee:
    """Return a callee that gets each argument under its own name."""
    return Callee(function=function, signature=signature, whole=None, is_coroutine=is_coroutine(function))


def whole_object(function: Callable[..., Any], *, tool: str) -> Callee:
    """Return a callee that gets the raw object in its one parameter, with a ToolContext beside it if it takes one.

    Raises:
        ToolDefinitionError: when it does not take exactly one.
    """
    signature = read_signature(function, tool=tool, annotated=False)
    needed = _needed(signature)
    if len(needed) != 1:
        raise ToolDefinitionError(
            f"Tool {tool!r}: a handler with a ready schema takes one parameter, the dict of arguments "
            "(and a ToolContext, if it wants one).",
            tool=tool,
        )
    return Callee(function=function, signature=signature, whole=needed[0], is_coroutine=is_coroutine(function))


def hook_like(handler: Callee, hook: Callable[..., Any], *, tool: str) -> Callee:
    """Return a callee for a verify hook, which takes what `handler` takes; the ToolContext is its own choice.

    Raises:
        ToolDefinitionError: when it lacks one of the handler's parameters, needs one more, or types one differently.
    """
    if handler.whole is not None:
        return whole_object(hook, tool=tool)
    signature = read_signature(hook, tool=tool, annotated=False)
    own = {parameter.name: parameter for parameter in signature.parameters}
    for parameter in handler.signature.parameters:
        if parameter.name not in own:
            _refuse(tool, parameter.name, "the verify hook does not take it")
        annotation = own.pop(parameter.name).annotation
        if EMPTY not in (annotation, parameter.annotation) and _bare(annotation) != _bare(parameter.annotation):
            _refuse(tool, parameter.name, "the verify hook gives it another type than the handler")
    for name, parameter in own.items():
        if parameter.default is EMPTY:
            _refuse(tool, name, "the verify hook needs it, but the handler has no such parameter")
    return by_name(hook, signature)


def _needed(signature: Signature) -> list[str]:
    return [parameter.name for parameter in signature.parameters if parameter.default is EMPTY]


def _bare(annotation: Any) -> Any:
    """Return what can be compared of a type: without what Annotated adds anywhere in it, unions in any order."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bare(arguments[0])
    if origin in (Union, types.UnionType):
        return Union, frozenset(map(_bare, arguments))
    if isinstance(annotation, list):
        return tuple(map(_bare, cast("list[object]", annotation)))
    return (origin, *map(_bare, arguments)) if arguments else annotation


def _refuse(tool: str, parameter: str, reason: str) -> NoReturn:
    raise ToolDefinitionError(f"Tool {tool!r}, parameter {parameter!r}: {reason}.", tool=tool, parameter=parameter)
