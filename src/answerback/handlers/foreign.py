"""Tools written for other SDKs, taken as they are: the schema they declare is the schema the model sees.

Neither SDK is imported. A tool that exists has imported its own SDK, and is recognised by module and shape.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import pydantic

from answerback.errors import ArgumentsError, ToolDefinitionError
from answerback.handlers import problems
from answerback.handlers.arguments import Binder, BoundArguments, SchemaBinder
from answerback.handlers.callee import whole_object
from answerback.handlers.context import ToolContext
from answerback.handlers.tool import Tool

_AGENTS_SHAPE = ("name", "description", "params_json_schema", "on_invoke_tool", "strict_json_schema", "is_enabled")
_MODEL = "_model"


def from_foreign(foreign: object, options: Mapping[str, Any]) -> Tool[..., Any] | None:
    """Return a tool for one of the `openai` package's or of openai-agents, None for anything else.

    Raises:
        ToolDefinitionError: when it cannot be taken as it is.
    """
    if type(foreign).__module__.startswith("openai.lib.") and hasattr(foreign, "definition") and callable(foreign):
        return _from_openai(foreign, options)
    if all(hasattr(foreign, attribute) for attribute in _AGENTS_SHAPE):
        return _from_agents(foreign, options)
    return None


def _from_openai(foreign: Callable[[dict[str, Any]], object], options: Mapping[str, Any]) -> Tool[..., Any]:
    definition = cast("dict[str, Any]", getattr(foreign, "definition"))  # noqa: B009 - an attribute of another SDK's class

    def invoke(arguments: dict[str, Any]) -> object:
        # Sync functions run here, in a thread; of an async one this only makes the coroutine, which the loop awaits.
        return foreign(arguments)

    name: str = definition["name"]
    parameters: dict[str, Any] = definition["parameters"]
    return Tool[..., Any].assemble(
        name=name,
        description=definition.get("description", ""),
        parameters=parameters,
        binder=_model_binder(foreign, parameters) or SchemaBinder(parameters, tool=name),
        callee=whole_object(invoke, tool=name),
        source=f"{type(foreign).__module__}.{type(foreign).__qualname__}",
        options={"defer_loading": definition.get("defer_loading", False), **options},
    )


def _from_agents(foreign: Any, options: Mapping[str, Any]) -> Tool[..., Any]:
    name: str = foreign.name
    enabled = options.get("is_enabled", foreign.is_enabled)
    if "is_enabled" not in options and not isinstance(enabled, bool):
        raise ToolDefinitionError(
            f"Tool {name!r}: its is_enabled function wants the Agents SDK's run and agent, which do not exist here; "
            "pass is_enabled= to handlers.add.",
            tool=name,
        )

    async def invoke(arguments: dict[str, Any], ctx: ToolContext) -> object:
        text = json.dumps(arguments)
        return await foreign.on_invoke_tool(_agents_context(ctx, text), text)

    parameters: dict[str, Any] = foreign.params_json_schema
    return Tool[..., Any].assemble(
        name=name,
        description=foreign.description,
        parameters=parameters,
        binder=SchemaBinder(parameters, tool=name),
        callee=whole_object(invoke, tool=name),
        source=f"{type(foreign).__module__}.{type(foreign).__qualname__}",
        options={"defer_loading": bool(getattr(foreign, "defer_loading", False)), **options, "is_enabled": enabled},
    )


def _agents_context(ctx: ToolContext, arguments: str) -> object:
    """Return the Agents SDK's own context where that SDK is there, since its tools read from it; else ours."""
    module = sys.modules.get("agents.tool_context")
    if module is None:
        return ctx
    return module.ToolContext(context=ctx.deps, tool_name=ctx.name, tool_call_id=ctx.call_id, tool_arguments=arguments)


class _ModelBinder:
    """Checks with the pydantic model behind an `openai` tool, which is laxer than its schema ("5" is an integer)."""

    def __init__(self, model: type[pydantic.BaseModel], parameters: Mapping[str, Any]) -> None:
        self._model = model
        self._names = problems.property_names(parameters)

    def __repr__(self) -> str:
        return f"<_ModelBinder {self._model.__name__}>"

    def bind(self, members: dict[str, Any], text: str) -> BoundArguments:
        """Validate the text, and hand on the members: the tool validates them again for itself."""
        try:
            self._model.model_validate_json(text)
        except pydantic.ValidationError as error:
            raise ArgumentsError(problems.rejected(problems.of_model(error, self._names))) from None
        return BoundArguments(members)


def _model_binder(foreign: object, parameters: Mapping[str, Any]) -> Binder | None:
    """Return a binder for the model the SDK keeps in a private attribute; None when a release moves it."""
    model = getattr(foreign, _MODEL, None)
    if isinstance(model, type) and issubclass(model, pydantic.BaseModel):
        return _ModelBinder(model, parameters)
    return None
