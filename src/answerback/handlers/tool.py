"""Tool: what the model sees of a function, and everything the runtime needs to run it."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import anyio

from answerback.errors import ToolDefinitionError
from answerback.handlers import outcome, strict
from answerback.handlers.arguments import Binder, BoundArguments, ModelBinder, SchemaBinder, decode
from answerback.handlers.callee import Callee, by_name, hook_like, whole_object
from answerback.handlers.context import ToolContext
from answerback.handlers.options import FunctionOptions, ToolOptions, checked
from answerback.handlers.policy import Retry, Verdict
from answerback.handlers.schema import build_schema, docstring_of
from answerback.handlers.secrets import Hidden, hidden_parts
from answerback.handlers.signature import names_of, read_signature, source_of
from answerback.model import Effects, OnInterrupted, Outcome

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
V = TypeVar("V")

Hook: TypeAlias = Callable[P, Verdict[V] | Awaitable[Verdict[V]]]
Api: TypeAlias = Literal["agents", "responses"]

logger = logging.getLogger("answerback.handlers.tool")

PREDICATE_TIMEOUT = 10.0
"""Seconds an async `is_enabled` or `needs_approval` may take: a call must not wait for it without end."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tool(Generic[P, R_co]):
    """A function the model may call. Calling the tool calls the function, with its own parameters and result.

    Made by `Handlers.tool` from a function, or here from a ready JSON Schema and a handler that takes the raw dict
    of arguments (and a ToolContext, if it wants one).

    Args:
        name: 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`.
        description: what the model is told of it.
        parameters: a JSON Schema of type object. Arguments are checked against it as it is.
        handler: called with the dict of arguments.
        **options: see `ToolOptions`.

    Raises:
        ToolDefinitionError: for a bad name, schema, handler or option.
    """

    def __init__(
        self,
        *,
        name: str,
        parameters: Mapping[str, Any],
        handler: Callable[P, R_co],
        description: str = "",
        **options: Unpack[ToolOptions],
    ) -> None:
        callee = whole_object(handler, tool=name)
        self._set_up(name, description, dict(parameters), SchemaBinder(parameters, tool=name), callee, options)

    @classmethod
    def from_function(cls, function: Callable[P, R_co], **options: Unpack[FunctionOptions]) -> Self:
        """Make a tool from a function's signature and docstring.

        Raises:
            ToolDefinitionError: for a function that cannot become a tool; names the parameter.
        """
        given: dict[str, Any] = dict(options)
        name: str = given.pop("name", None) or _name_of(function)
        signature = read_signature(function, tool=name)
        docstring = docstring_of(function)
        schema = build_schema(signature, docstring, tool=name, names=names_of(function))
        description: str | None = given.pop("description", None)
        return cls.assemble(
            name=name,
            description=docstring.description if description is None else description,
            parameters=schema.parameters,
            binder=ModelBinder(schema),
            callee=by_name(function, signature),
            options=given,
            wire=schema.wire,
        )

    @classmethod
    def assemble(
        cls,
        *,
        name: str,
        description: str,
        parameters: dict[str, Any],
        binder: Binder,
        callee: Callee,
        options: Mapping[str, Any],
        source: str | None = None,
        wire: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a tool from finished parts; for adapters of other SDKs' tools, which say where theirs came from.

        `wire` maps the handler's parameters to the names the model uses.

        Raises:
            ToolDefinitionError: for a bad name or option.
        """
        tool = cls.__new__(cls)
        tool._set_up(  # noqa: SLF001 - its own half-made instance
            name, description, parameters, binder, callee, options
        )
        if source is not None:
            tool.source = source
        if wire is not None:
            tool.hidden = hidden_parts(callee.signature, wire, parameters)
        return tool

    def _set_up(
        self,
        name: str,
        description: str,
        parameters: dict[str, Any],
        binder: Binder,
        callee: Callee,
        options: Mapping[str, Any],
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"Tool {name!r}: a name has 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'; give name=.", tool=name
            )
        self.name = name
        self.description = description
        self.parameters = parameters
        self._settings = checked(name, options)
        self._binder = binder
        self._callee = callee
        self._verify: Callee | None = None
        self._widened = strict.has_widened(parameters)
        self.hidden: Hidden = hidden_parts(callee.signature, {}, parameters)
        self.seal: Callable[[bytes], bytes] = bytes
        self.source = _where(callee.function)
        self.handler_version = _version(parameters, self._settings.version)
        self.__wrapped__ = callee.function
        self.__name__ = name
        self.__doc__ = getattr(callee.function, "__doc__", None)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, as if it had never become a tool."""
        return cast("R_co", self._callee.function(*args, **kwargs))

    def __repr__(self) -> str:
        verify = ", verify" if self.has_verify else ""
        return f"<Tool {self.name} {self.effects}{verify} from {self.source}>"

    @property
    def effects(self) -> Effects:
        """What running it again would do."""
        return self._settings.effects

    @property
    def timeout(self) -> float:
        """Seconds a call may take."""
        return self._settings.timeout

    @property
    def retry(self) -> Retry | None:
        """When an exception starts it again; None: never."""
        return self._settings.retry

    @property
    def max_concurrency(self) -> int | None:
        """How many calls of it may run at once; None: as many as the runtime allows."""
        return self._settings.max_concurrency

    @property
    def on_interrupted(self) -> OnInterrupted | None:
        """What follows a call nobody can tell the outcome of; None: the runtime's default."""
        return self._settings.on_interrupted

    @property
    def settle(self) -> float:
        """Seconds after the start before the verify hook may be asked."""
        return self._settings.settle

    @property
    def is_enabled(self) -> bool | Callable[[], bool | Awaitable[bool]]:
        """The option as given; `enabled` evaluates it."""
        return self._settings.is_enabled

    @property
    def defer_loading(self) -> bool:
        """Whether the model sees it only after tool search loaded it."""
        return self._settings.defer_loading

    @property
    def is_async_declared(self) -> bool:
        """Whether the agent may go on without its result (`async: true` on the wire)."""
        return self._settings.run_async

    @property
    def version(self) -> str:
        """The declared version."""
        return self._settings.version

    @property
    def has_verify(self) -> bool:
        """Whether somebody can be asked what an interrupted call did."""
        return self._verify is not None

    @property
    def is_coroutine(self) -> bool:
        """Whether the body runs on the event loop; a thread runs it otherwise."""
        return self._callee.is_coroutine

    @property
    def body(self) -> Callee:
        """How the executor calls the handler."""
        return self._callee

    @property
    def hook(self) -> Callee | None:
        """How the executor calls the verify hook, if there is one."""
        return self._verify

    def bind(self, raw: bytes) -> BoundArguments:
        """Turn the wire's arguments into what the handler takes.

        Raises:
            ArgumentsError: naming what is wrong, in words that may go to the model.
        """
        members, text = decode(raw)
        if self._widened:
            cleaned = strict.without_widened_nulls(members, self.parameters, self.parameters)
            members = cast("dict[str, Any]", cleaned)
            text = json.dumps(members)
        return self._binder.bind(members, text)

    def encode(self, value: object, *, limit: int = outcome.OUTPUT_LIMIT) -> Outcome:
        """Turn what the handler returned into an outcome; over `limit` characters it is refused, see `outcome.encode`.

        Raises:
            OutputError: for a value that has no exact form on the wire.
        """
        return outcome.encode(value, self, limit=limit)

    def definition(self, api: Api = "agents") -> dict[str, Any]:
        """Return the definition to declare it with.

        Raises:
            ToolDefinitionError: when it has no strict form, which `api="responses"` needs.
        """
        found: dict[str, Any] = {"type": "function", "name": self.name, "description": self.description}
        if api == "agents":
            found["parameters"] = json.loads(json.dumps(self.parameters))
        else:
            found["parameters"] = strict.strict_form(self.parameters, tool=self.name)
            found["strict"] = True
        if self.defer_loading:
            found["defer_loading"] = True
        if self.is_async_declared and api == "agents":
            found["async"] = True
        return found

    async def enabled(self) -> bool:
        """Whether the model may use it now. An `is_enabled` function that raises or hangs counts as no."""
        asked = self.is_enabled
        if isinstance(asked, bool):
            return asked
        try:
            with anyio.fail_after(PREDICATE_TIMEOUT):
                answer = asked()
                return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001 - the author's function; its text may hold values
            logger.error("is_enabled raised %s; the tool is off", type(error).__name__, extra={"tool": self.name})  # noqa: TRY400
            return False

    async def wants_approval(self, context: ToolContext[Any], bound: BoundArguments) -> bool:
        """Whether a person must say yes to this call. A `needs_approval` function that raises or hangs counts as yes."""
        asked = self._settings.needs_approval
        if isinstance(asked, bool):
            return asked
        try:
            with anyio.fail_after(PREDICATE_TIMEOUT):
                answer = asked(context, bound.values)
                return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001 - the author's function; its text may hold values
            name = type(error).__name__
            logger.error("needs_approval raised %s; a person is asked", name, extra={"tool": self.name})  # noqa: TRY400
            return True

    # A hook takes the handler's parameters, with or without the ToolContext, and may be sync or async whatever the
    # handler is. Its answer is about what the handler gives once awaited.
    @overload
    def verify(self: Tool[P, Coroutine[Any, Any, V]], hook: Hook[P, V], /) -> Hook[P, V]: ...

    @overload
    def verify(
        self: Tool[P, Coroutine[Any, Any, V]], hook: Hook[Concatenate[ToolContext[Any], P], V], /
    ) -> Hook[Concatenate[ToolContext[Any], P], V]: ...

    @overload
    def verify(
        self: Tool[Concatenate[ToolContext[Any], Q], Coroutine[Any, Any, V]], hook: Hook[Q, V], /
    ) -> Hook[Q, V]: ...

    @overload
    def verify(self: Tool[P, R], hook: Hook[P, R], /) -> Hook[P, R]: ...

    @overload
    def verify(
        self: Tool[P, R], hook: Hook[Concatenate[ToolContext[Any], P], R], /
    ) -> Hook[Concatenate[ToolContext[Any], P], R]: ...

    @overload
    def verify(self: Tool[Concatenate[ToolContext[Any], Q], R], hook: Hook[Q, R], /) -> Hook[Q, R]: ...

    def verify(self, hook: Callable[..., Any], /) -> Callable[..., Any]:
        """Register the function to ask what an interrupted call did; returns it unchanged.

        Raises:
            ToolDefinitionError: when there is one already, or its parameters are not the handler's.
        """
        if self._verify is not None:
            raise ToolDefinitionError(f"Tool {self.name!r} has a verify hook already; one is enough.", tool=self.name)
        self._verify = hook_like(self._callee, hook, tool=self.name)
        return hook


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        kind = type(function).__name__
        raise ToolDefinitionError(f"A {kind} has no name of its own; give name=.", tool=kind)
    return name


def _version(parameters: Mapping[str, Any], declared: str) -> str:
    # No source lines: moving a function must not make its running calls look like another handler's.
    canonical = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{canonical}\x1f{declared}".encode()).hexdigest()[:16]


def _where(function: object) -> str:
    source = source_of(function)
    code = getattr(source, "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None else ""
    return f"{getattr(source, '__module__', '?')}.{getattr(source, '__qualname__', type(function).__name__)}{line}"
