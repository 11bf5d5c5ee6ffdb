"""A callable's signature and docstring as a JSON Schema, and the pydantic model that checks arguments against it.

The shape: optional parameters stay optional, defaults are kept, unknown keys are refused, and no titles are made
from names. Descriptions: the docstring wins over `Field(description=...)` and over a string in `Annotated`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from answerback.errors import ToolDefinitionError
from answerback.handlers.docstrings import DocstringFacts, read_docstring
from answerback.handlers.signature import EMPTY, Parameter, Signature, names_of, read_signature, source_of

# What pydantic raises for a type it cannot check or describe; NameError is its "undefined annotation".
_REFUSALS = (pydantic.PydanticUserError, TypeError, ValueError, NameError, AttributeError)


class FunctionSchema(msgspec.Struct, frozen=True):
    """A signature made checkable.

    `fields` maps the model's own field names to the callable's parameter names: the model's are neutral, so that
    parameters may be called `_hidden`, `model_config`, `schema` or `json`. `wire` maps those names to the ones the
    model uses, which an alias may have changed.
    """

    parameters: dict[str, Any]
    model: type[pydantic.BaseModel]
    fields: dict[str, str]
    wire: dict[str, str] = {}


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON Schema of the arguments `function` takes, as the Agents API is given it.

    Raises:
        ToolDefinitionError: when `function` cannot become a tool.
    """
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    signature = read_signature(function, tool=name)
    return build_schema(signature, docstring_of(function), tool=name, names=names_of(function)).parameters


def docstring_of(function: object) -> DocstringFacts:
    """Read the docstring of the function under partials, methods and callable objects."""
    source = source_of(function)
    return read_docstring(getattr(source, "__doc__", None) or _own_docstring(function))


def build_schema(
    signature: Signature, docstring: DocstringFacts, *, tool: str, names: Mapping[str, Any]
) -> FunctionSchema:
    """Build the model and its schema; `names` are those that postponed annotations of nested types may use.

    Raises:
        ToolDefinitionError: naming the parameter whose type pydantic cannot check or describe.
    """
    try:
        model = _model(signature.parameters, names)
        schema = model.model_json_schema(by_alias=True, schema_generator=_Untitled)
    except _REFUSALS as error:
        raise _explained(error, signature, tool, names) from error
    _drop_class_titles(schema)
    fields = {_field(index): parameter.name for index, parameter in enumerate(signature.parameters)}
    wire = {model.model_fields[field].alias or name: name for field, name in fields.items()}
    if len(wire) < len(fields):
        raise ToolDefinitionError(f"Tool {tool!r}: two parameters share one alias.", tool=tool)
    _describe(schema, wire, signature, docstring)
    return FunctionSchema(schema, model, fields, {name: alias for alias, name in wire.items()})


def _model(parameters: tuple[Parameter, ...], names: Mapping[str, Any]) -> type[pydantic.BaseModel]:
    definitions: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        default = ... if parameter.default is EMPTY else parameter.default
        definitions[_field(index)] = (_aliased(parameter), default)
    # No alias generator: pydantic hands it down to nested TypedDicts and dataclasses, which have other names.
    model: type[pydantic.BaseModel] = pydantic.create_model(
        "Arguments", __config__=pydantic.ConfigDict(extra="forbid"), **definitions
    )
    # Does nothing when the model is complete already; pydantic itself looks no further than the types' own modules.
    model.model_rebuild(_types_namespace=names)
    return model


def _aliased(parameter: Parameter) -> Any:
    # First in the list, so that an alias the author gave comes later and wins.
    own = pydantic.Field(alias=parameter.name)
    if get_origin(parameter.annotation) is Annotated:
        base, *metadata = get_args(parameter.annotation)
        return Annotated[(base, own, *metadata)]
    return Annotated[parameter.annotation, own]


def _field(index: int) -> str:
    return f"argument_{index}"


def _describe(schema: dict[str, Any], wire: dict[str, str], signature: Signature, docstring: DocstringFacts) -> None:
    annotations = {parameter.name: parameter.annotation for parameter in signature.parameters}
    properties = cast("dict[str, dict[str, Any]]", schema.setdefault("properties", {}))
    for alias, name in wire.items():
        described = properties[alias]
        if name in docstring.arguments:
            described["description"] = docstring.arguments[name]
        elif "description" not in described and (note := _note(annotations[name])):
            described["description"] = note


def _drop_class_titles(schema: dict[str, Any]) -> None:
    """Drop the root's title and those that only repeat a definition's key; an author's own title stays."""
    schema.pop("title", None)
    for key, definition in schema.get("$defs", {}).items():
        title = re.sub(r"[^a-zA-Z0-9.\-_]", "_", str(definition.get("title", "")))
        if title and (key == title or key.endswith(f"__{title}")):
            del definition["title"]


def _note(annotation: Any) -> str | None:
    """Return the first plain string of an Annotated, which the Agents SDK takes as the description."""
    if get_origin(annotation) is not Annotated:
        return None
    return next((item for item in get_args(annotation)[1:] if isinstance(item, str)), None)


def _own_docstring(function: object) -> str | None:
    # A callable object is documented by its class; a partial's docstring is functools', not the author's.
    if callable(function) and not isinstance(function, type):
        own = type(function).__doc__
        return own if type(function).__module__ not in ("builtins", "functools") else None
    return None


def _explained(error: Exception, signature: Signature, tool: str, names: Mapping[str, Any]) -> ToolDefinitionError:
    """Name the parameter at fault by trying each one alone."""
    for parameter in signature.parameters:
        try:
            _model((parameter,), names).model_json_schema(schema_generator=_Untitled)
        except _REFUSALS as found:
            return ToolDefinitionError(
                f"Tool {tool!r}, parameter {parameter.name!r}: {_reason(found)}.", tool=tool, parameter=parameter.name
            )
    return ToolDefinitionError(f"Tool {tool!r}: {_reason(error)}.", tool=tool)


def _reason(error: Exception) -> str:
    code = getattr(error, "code", None)
    if code == "typed-dict-version":
        return "below Python 3.12 a TypedDict must come from typing_extensions, not from typing"
    if code in ("undefined-annotation", "class-not-fully-defined"):
        return "its type uses a name that is not defined yet; define it before the tool is registered"
    if code in ("schema-for-unknown-type", "invalid-for-json-schema"):
        return "its type has no JSON form; use plain types, dataclasses, TypedDicts or pydantic models"
    return f"its type cannot be used ({type(error).__name__})"


class _Untitled(GenerateJsonSchema):
    """Leave out the titles pydantic makes from names: they repeat the name and cost the model tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Say nothing: a default that has no JSON form is simply not shown, and still applies."""
