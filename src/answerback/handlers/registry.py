"""Handlers: the set of tools one runtime answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from answerback.errors import ConfigurationError, ToolDefinitionError
from answerback.handlers.context import ToolContext
from answerback.handlers.foreign import from_foreign
from answerback.handlers.options import FunctionOptions, ToolOptions
from answerback.handlers.secrets import KEY_VARIABLE, Hidden, Keyring, Secrecy, read_keys
from answerback.handlers.tool import Api, Tool

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("answerback.handlers.registry")


class ToolDecorator(Protocol):
    """What `handlers.tool(...)` with options gives: turns a function into a tool of the same parameters and result."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]:
        """Register the function."""
        ...


class Handlers:
    """The tools a runtime answers, by name.

    Args:
        on_exception: called with the context and the exception when a handler raises something that is not meant for
            the model; the only place its text and traceback go to. A plain function; what it raises is contained.
        secret_key: what `Secret` arguments are hashed and `Secret` results encrypted with: a text of at least 32
            random characters, or several, the newest first. ANSWERBACK_SECRET_KEY when it is not given.
    """

    def __init__(
        self,
        *,
        on_exception: Callable[[ToolContext, BaseException], object] | None = None,
        secret_key: str | Sequence[str] | None = None,
    ) -> None:
        self.on_exception = on_exception
        self._tools: dict[str, Tool[..., Any]] = {}
        self._secret_key = secret_key
        self._keys: Keyring | None = None

    def __repr__(self) -> str:
        return f"<Handlers {len(self._tools)} tools: {', '.join(self._tools)}>"

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool[..., Any]]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in the order they were registered."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool[..., Any] | None:
        """Return the tool of exactly this name, or None."""
        return self._tools.get(name)

    @overload
    def tool(self, function: Callable[P, R], /, **options: Unpack[FunctionOptions]) -> Tool[P, R]: ...

    @overload
    def tool(self, function: None = None, /, **options: Unpack[FunctionOptions]) -> ToolDecorator: ...

    def tool(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[FunctionOptions]
    ) -> Tool[..., Any] | ToolDecorator:
        """Register a function: `@handlers.tool`, `@handlers.tool(...)` and `handlers.tool(...)(function)`.

        The signature becomes the schema, the docstring the descriptions. See `FunctionOptions` for the options.

        Raises:
            ToolDefinitionError: for a function that cannot become a tool, or a name that is taken.
        """
        if isinstance(function, Tool):
            name = cast("Tool[..., Any]", function).name
            raise ToolDefinitionError(f"Tool {name!r} is a tool already; register it with handlers.add.", tool=name)
        if function is not None:
            return self._register(Tool[..., Any].from_function(function, **options))

        def decorate(function: Callable[P, R], /) -> Tool[P, R]:
            tool = Tool[P, R].from_function(function, **options)
            self._register(tool)
            return tool

        return decorate

    def add(self, tool: object, /, **options: Unpack[ToolOptions]) -> Tool[..., Any]:
        """Register a finished tool: ours, or one of the `openai` package or of openai-agents, unchanged.

        Args:
            tool: the tool.
            **options: for another SDK's tool, what that SDK has no words for (`effects`, `timeout`, ...).

        Raises:
            ToolDefinitionError: when its name is taken, or it cannot be taken as it is.
            ConfigurationError: for something that is no tool.
        """
        if isinstance(tool, Tool):
            ours = cast("Tool[..., Any]", tool)
            if options:
                raise ToolDefinitionError(
                    f"Tool {ours.name!r} has its options already; give them where it is made.", tool=ours.name
                )
            return self._register(ours)
        adapted = from_foreign(tool, options)
        if adapted is None:
            raise ConfigurationError(
                f"handlers.add takes a Tool, or a FunctionTool of openai or openai-agents, not {type(tool).__name__}; "
                "for a function use handlers.tool."
            )
        return self._register(adapted)

    def definitions(self, api: Api = "agents") -> list[dict[str, Any]]:
        """Return what to declare: every tool that is not switched off for good, and tool search if one needs it.

        `is_enabled` functions are not asked here, because they may be async: see `Tool.enabled`.

        Raises:
            ToolDefinitionError: with `api="responses"`, for a tool that has no strict form.
        """
        declared = [tool for tool in self if tool.is_enabled is not False]
        found = [tool.definition(api) for tool in declared]
        if any(tool.defer_loading for tool in declared):
            # A deferred function without this entry is refused by both APIs.
            found.append({"type": "tool_search"})
        return found

    @property
    def secrecy(self) -> Secrecy:
        """How a journal stores what these tools declare `Secret`."""
        return Secrecy(self._hidden, self._keyring)

    def _hidden(self, name: str) -> Hidden | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.hidden

    def _keyring(self) -> Keyring:
        if self._keys is None:
            self._keys = read_keys(self._secret_key)
        return self._keys

    def _check_secrets(self, tool: Tool[..., Any]) -> None:
        """Refuse a secret result that could not be encrypted, now and not when it is there."""
        if tool.hidden.result:
            if not self._keyring():
                raise ToolDefinitionError(
                    f"Tool {tool.name!r} has a Secret result, which is stored encrypted: give Handlers(secret_key=...) "
                    f"or set {KEY_VARIABLE}.",
                    tool=tool.name,
                )
            self._keyring().check_cipher()
            tool.seal = self._keyring().seal
        elif tool.hidden.arguments and not self._keyring():
            logger.warning(
                "tool %s has Secret arguments and no secret key: a short one can be guessed from its stored hash. "
                "Give Handlers(secret_key=...) or set %s.",
                tool.name,
                KEY_VARIABLE,
                extra={"tool": tool.name},
            )

    def _register(self, tool: Tool[P, R]) -> Tool[P, R]:
        known = self._tools.get(tool.name)
        if known is not None:
            raise ToolDefinitionError(
                f"Tool {tool.name!r} is there twice: {known.source} and {tool.source}; give one another name.",
                tool=tool.name,
            )
        self._check_secrets(tool)
        if not tool.description.strip():
            logger.warning(
                "tool %s has no description; the model only sees its name. Give it a docstring or description=.",
                tool.name,
                extra={"tool": tool.name},
            )
        self._tools[tool.name] = tool
        return tool
