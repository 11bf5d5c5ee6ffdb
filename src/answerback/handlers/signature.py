"""What can be read off a callable: its parameters with resolved annotations, its context parameter, its kind."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, Union, cast, get_args, get_origin

import msgspec

from answerback.errors import ToolDefinitionError
from answerback.handlers.context import ToolContext

EMPTY = inspect.Parameter.empty

_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
_KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


_CALL = "__call__"


class Parameter(msgspec.Struct, frozen=True):
    """One parameter; `annotation` is resolved, `EMPTY` where there is none, as `default` is."""

    name: str
    annotation: Any
    default: Any


class Signature(msgspec.Struct, frozen=True):
    """The parameters the model fills in, and the name of the one that takes the ToolContext.

    `returns` is the resolved annotation of the result, `EMPTY` where there is none or it cannot be resolved.
    """

    parameters: tuple[Parameter, ...]
    context: str | None
    returns: Any = EMPTY


def read_signature(function: Callable[..., Any], *, tool: str, annotated: bool = True) -> Signature:
    """Read a handler's signature.

    Args:
        function: a function, bound method, classmethod, functools.partial or callable object.
        tool: the tool's name, for the messages.
        annotated: whether every parameter needs an annotation.

    Raises:
        ToolDefinitionError: for something whose arguments cannot all be given by name, or that is no handler.
    """
    _refuse_wrong_kinds(function, tool)
    try:
        found = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ToolDefinitionError(
            f"Tool {tool!r}: its signature cannot be read; wrap it in a function.", tool=tool
        ) from error
    names = _Names(function)
    preset: set[str] = set(function.keywords) if isinstance(function, functools.partial) else set()
    context: str | None = None
    parameters: list[Parameter] = []
    for parameter in found.parameters.values():
        if parameter.name in preset:
            continue
        _refuse_kind_of(parameter, tool)
        annotation = names.resolve(parameter, tool) if parameter.annotation is not EMPTY else EMPTY
        if _is_context(annotation):
            if context is not None:
                _refuse(tool, parameter.name, "there is a ToolContext parameter already; one is enough")
            context = parameter.name
            continue
        if annotation is EMPTY and annotated:
            _refuse(tool, parameter.name, "it has no annotation; give it a type")
        parameters.append(Parameter(parameter.name, annotation, parameter.default))
    return Signature(tuple(parameters), context, _returns(found.return_annotation, names, tool))


def _returns(annotation: Any, names: _Names, tool: str) -> Any:
    """Resolve the annotation of the result. Nobody needs it but `Secret`, so only that must not be missed."""
    if annotation is EMPTY:
        return EMPTY
    try:
        return names.resolve(inspect.Parameter("result", _KEYWORD_ONLY, annotation=annotation), tool)
    except ToolDefinitionError:
        if "Secret" in str(annotation):
            raise
        return EMPTY


def is_coroutine(function: object) -> bool:
    """Whether calling it gives a coroutine; looks through partials and callable objects."""
    core = _unwrapped(function)
    return inspect.iscoroutinefunction(core) or inspect.iscoroutinefunction(_call_method(core))


def names_of(function: object) -> dict[str, Any]:
    """Return the names its annotations may use, for types that have postponed annotations of their own."""
    names = _Names(function)
    return {**names.globals, **names.locals}


def source_of(function: object) -> Any:
    """Return the plain function under partials, bound methods, wrappers and callable objects."""
    core = _unwrapped(function)
    if not inspect.isroutine(core):
        core = _call_method(core) or core
    plain: Any = inspect.unwrap(cast("Callable[..., Any]", core))
    return getattr(plain, "__func__", plain)


def _call_method(instance: object) -> Any:
    # By name, because only the function found on the class shows how a callable object was written.
    return getattr(type(instance), _CALL, None)


def _unwrapped(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _refuse_wrong_kinds(function: object, tool: str) -> None:
    core = _unwrapped(function)
    if inspect.isclass(core):
        raise ToolDefinitionError(
            f"Tool {tool!r}: a class is not a handler; give an instance or a function.", tool=tool
        )
    if not callable(core):
        raise ToolDefinitionError(f"Tool {tool!r}: a handler is something that can be called.", tool=tool)
    source = source_of(function)
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        raise ToolDefinitionError(
            f"Tool {tool!r}: it is a generator; a call has one result, so return it (a list, for example).", tool=tool
        )
    if _is_unbound_method(core):
        raise ToolDefinitionError(
            f"Tool {tool!r}: it is a method without its object; register it from an instance, "
            "as in handlers.tool(Shop().price).",
            tool=tool,
            parameter="self",
        )


def _is_unbound_method(core: object) -> bool:
    if not inspect.isfunction(core):
        return False
    owner = core.__qualname__.rpartition(".")[0]
    first = core.__code__.co_varnames[:1] if core.__code__.co_argcount else ()
    return bool(owner) and not owner.endswith("<locals>") and first in (("self",), ("cls",))


def _refuse_kind_of(parameter: inspect.Parameter, tool: str) -> None:
    if parameter.kind in (_POSITIONAL_OR_KEYWORD, _KEYWORD_ONLY):
        return
    reason = {
        inspect.Parameter.POSITIONAL_ONLY: "it is positional-only, but arguments come by name; drop the '/'",
        inspect.Parameter.VAR_POSITIONAL: "'*' parameters have no names the model could use; take a list",
        inspect.Parameter.VAR_KEYWORD: "'**' parameters have no schema; take a dict or name them",
    }[parameter.kind]
    _refuse(tool, parameter.name, reason)


def _refuse(tool: str, parameter: str, reason: str) -> NoReturn:
    raise ToolDefinitionError(f"Tool {tool!r}, parameter {parameter!r}: {reason}.", tool=tool, parameter=parameter)


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(_is_context(member) for member in get_args(annotation))
    target = origin or annotation
    return isinstance(target, type) and issubclass(target, ToolContext)


class _Names:
    """The names a callable's postponed annotations may use: its module, its closure, its class, its open frames."""

    def __init__(self, function: object) -> None:
        source = source_of(function)
        self.globals: dict[str, Any] = getattr(source, "__globals__", {})
        self.locals: dict[str, Any] = {}
        code: types.CodeType | None = getattr(source, "__code__", None)
        if code is not None:
            self._add_frames(code, getattr(source, "__qualname__", ""))
            self._add_closure(code, getattr(source, "__closure__", None) or ())
        self._add_owner(function)

    def resolve(self, parameter: inspect.Parameter, tool: str) -> Any:
        """Evaluate one annotation, strings inside it included."""
        holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            hints = typing.get_type_hints(holder, self.globals, self.locals, include_extras=True)
        except NameError as error:
            _refuse_from(
                error,
                tool,
                parameter.name,
                f"its annotation uses the name {error.name!r}, which cannot be found when the tool is registered; "
                "define or import it before, and not under TYPE_CHECKING",
            )
        except (TypeError, SyntaxError, AttributeError) as error:
            _refuse_from(error, tool, parameter.name, "its annotation is not a type")
        return hints[parameter.name]

    def _add_frames(self, code: types.CodeType, qualname: str) -> None:
        # A type defined in a function is found in that function's frame while it still registers the tool.
        parts = qualname.split(".<locals>.")[:-1]
        enclosing = {".<locals>.".join(parts[: count + 1]) for count in range(len(parts))}
        frame = inspect.currentframe()
        while frame is not None and enclosing:
            if frame.f_code.co_qualname in enclosing and frame.f_code.co_filename == code.co_filename:
                for name, value in frame.f_locals.items():
                    self.locals.setdefault(name, value)
            frame = frame.f_back
        del frame

    def _add_closure(self, code: types.CodeType, closure: tuple[types.CellType, ...]) -> None:
        for name, cell in zip(code.co_freevars, closure, strict=False):
            try:
                self.locals[name] = cell.cell_contents
            except ValueError:  # the cell is empty: the name is not bound yet
                continue

    def _add_owner(self, function: object) -> None:
        bound = getattr(_unwrapped(function), "__self__", None)
        if bound is None or inspect.ismodule(bound):
            return
        lineage = cast("type[object]", bound if inspect.isclass(bound) else type(bound)).__mro__
        for base in reversed(lineage[:-1]):
            self.locals = {**vars(base), **self.locals}


def _refuse_from(error: Exception, tool: str, parameter: str, reason: str) -> NoReturn:
    raise ToolDefinitionError(
        f"Tool {tool!r}, parameter {parameter!r}: {reason}.", tool=tool, parameter=parameter
    ) from error
