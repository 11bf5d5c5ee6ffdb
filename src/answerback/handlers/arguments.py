"""Raw wire arguments to Python values, or a rejection the model can act on. Nothing is repaired.

A repaired guess could run a side effect with values the model never meant, so text that is not exactly one JSON
object is refused. Public reports of doubled objects, cut-off text and trailing prose are what the rules come from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, cast

import jsonschema_rs
import msgspec
import pydantic

from answerback.errors import ArgumentsError, ToolDefinitionError
from answerback.handlers import problems
from answerback.handlers.schema import FunctionSchema

logger = logging.getLogger("answerback.handlers.arguments")


class BoundArguments(msgspec.Struct, frozen=True):
    """Checked arguments, by parameter name; for a tool with a ready schema, the raw members of the object."""

    values: Mapping[str, Any]

    def __repr__(self) -> str:
        # Never the values: they may be secret, and representations end up in tracebacks.
        return f"<BoundArguments {', '.join(self.values)}>"


class Binder(Protocol):
    """Checks decoded arguments against one tool's parameters."""

    def bind(self, members: dict[str, Any], text: str) -> BoundArguments:
        """Return the bound arguments, or raise ArgumentsError. `text` is the JSON the members came from."""
        ...


class ModelBinder:
    """Checks with pydantic, so that values arrive as the types the signature names."""

    def __init__(self, schema: FunctionSchema) -> None:
        self._schema = schema
        self._names = problems.property_names(schema.parameters)

    def __repr__(self) -> str:
        return f"<ModelBinder {', '.join(self._schema.fields.values())}>"

    def bind(self, members: dict[str, Any], text: str) -> BoundArguments:  # noqa: ARG002 - the text has it all
        """Validate in pydantic's lax mode; unknown keys are refused and named."""
        try:
            model = self._schema.model.model_validate_json(text)
        except pydantic.ValidationError as error:
            if any(found["type"] == "json_invalid" for found in error.errors(include_url=False, include_input=False)):
                # Well-formed for `decode`, so what is left is depth or half characters.
                raise ArgumentsError(_UNREADABLE) from None
            raise ArgumentsError(problems.rejected(problems.of_model(error, self._names))) from None
        except (Exception, SystemExit) as error:
            # An author's validator raised something of its own; its text may hold values.
            logger.warning("an argument validator raised %s", type(error).__name__)
            raise ArgumentsError("Arguments rejected: they could not be checked.") from error
        return BoundArguments({name: getattr(model, field) for field, name in self._schema.fields.items()})


class SchemaBinder:
    """Checks with jsonschema-rs against a ready JSON Schema; the handler gets the raw members.

    Raises:
        ToolDefinitionError: when the schema is not valid, is not one of an object, or refers to another document:
            nothing is ever fetched.
    """

    def __init__(self, parameters: Mapping[str, Any], *, tool: str) -> None:
        if parameters.get("type") != "object":
            raise ToolDefinitionError(
                f'Tool {tool!r}: `parameters` must be a JSON Schema of "type": "object".', tool=tool
            )
        try:
            self._validator = jsonschema_rs.validator_for(dict(parameters), offline=True)
        except (ValueError, TypeError) as error:
            raise ToolDefinitionError(
                f"Tool {tool!r}: `parameters` is not a valid JSON Schema, or refers to another document.", tool=tool
            ) from error
        self._names = problems.property_names(parameters)

    def __repr__(self) -> str:
        return f"<SchemaBinder {', '.join(sorted(self._names))}>"

    def bind(self, members: dict[str, Any], text: str) -> BoundArguments:  # noqa: ARG002 - it checks the members
        """Validate the members as they are."""
        try:
            found = problems.of_schema(self._validator.iter_errors(members), self._names)
        except ValueError:
            # Nested past the validator's limit, or half characters: both have no valid form on the wire.
            raise ArgumentsError(_UNREADABLE) from None
        if found:
            raise ArgumentsError(problems.rejected(found))
        return BoundArguments(members)


_UNREADABLE = "Arguments rejected: they must be one valid JSON object, not nested too deeply, in whole characters."


class NotOneObjectError(ArgumentsError):
    """Raised when the raw text is not exactly one JSON object."""

    def __init__(self) -> None:
        super().__init__(problems.NOT_AN_OBJECT)


def decode(raw: bytes) -> tuple[dict[str, Any], str]:
    """Return the members of the arguments' object and its JSON text.

    `raw` is the JSON text of an object, or of a string that holds exactly one. Nothing at all, blank text and null
    mean no arguments, which is what some models send for a tool that takes none.

    Raises:
        ArgumentsError: for anything else, and for repeated keys, NaN and infinite numbers.
    """
    try:
        text = raw.decode()
        value = _strict(text) if text.strip() else None
        if isinstance(value, str):
            text = value
            value = _strict(text) if text.strip() else None
    except (ValueError, RecursionError):
        # UnicodeDecodeError, JSONDecodeError and integers beyond CPython's limit of digits are all ValueErrors.
        raise NotOneObjectError from None
    if value is None:
        return {}, "{}"
    if not isinstance(value, dict):
        raise NotOneObjectError
    return cast("dict[str, Any]", value), text


def canonical_hash(raw: bytes) -> str:
    """Return 64 hex digits that name the arguments, whatever form the wire had them in.

    The sha256 of the canonical JSON (sorted keys, no spaces) after one decode, so that a frame and a retrieve agree.
    Total: bytes that are not arguments at all are hashed as their text, apart from all that are.
    """
    try:
        members, _ = decode(raw)
        canonical = json.dumps(members, sort_keys=True, separators=(",", ":"))
    except (ArgumentsError, ValueError, RecursionError):
        return hashlib.sha256(b"\x00not an object\x00" + _inner_text(raw)).hexdigest()
    return hashlib.sha256(canonical.encode()).hexdigest()


def _inner_text(raw: bytes) -> bytes:
    """Return the content of a JSON string, or the bytes as they are."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else raw


def _strict(text: str) -> object:
    return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse, parse_float=_finite)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key stands twice")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
