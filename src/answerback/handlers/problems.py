"""What is wrong with a call's arguments, in words for the model: paths and rules, never values.

The messages of pydantic and jsonschema-rs both quote the offending value, so every text is built here from the path,
the rule's name and the rule's own limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import pydantic

MAX_PROBLEMS = 5
MAX_CHARACTERS = 600
_MAX_NAME = 60

Problem: TypeAlias = tuple[str, str]
"""A path (empty for the arguments as a whole) and the rule it breaks."""

NOT_AN_OBJECT = "Arguments rejected: they must be one valid JSON object."

_KINDS: Mapping[str, str] = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a decimal number",
    "string": "a string",
    "bool": "true or false",
    "list": "an array",
    "tuple": "an array",
    "set": "an array",
    "frozen_set": "an array",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "dataclass": "an object",
    "typed_dict": "an object",
    "datetime": "a date and time (ISO 8601)",
    "date": "a date (ISO 8601)",
    "time": "a time (ISO 8601)",
    "time_delta": "a duration (ISO 8601)",
    "timezone": "a time zone",
    "uuid": "a UUID",
    "url": "a URL",
    "bytes": "a string",
}

_LIMITS: Mapping[str, str] = {
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "{discriminator} must be one of {expected_tags}",
    "union_tag_not_found": "{discriminator} is missing",
    "decimal_max_digits": "must have at most {max_digits} digits",
    "decimal_max_places": "must have at most {decimal_places} decimal places",
}

_FIXED: Mapping[str, str] = {
    "missing": "missing",
    "missing_argument": "missing",
    "extra_forbidden": "not a known parameter",
    "unexpected_keyword_argument": "not a known parameter",
    "none_required": "must be null",
    "finite_number": "must be a finite number",
    "int_from_float": "must be an integer",
    "int_parsing_size": "has too many digits",
    "string_unicode": "must be valid Unicode text",
    "recursion_loop": "nested too deeply",
}

_TYPES: Mapping[str, str] = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
}

_SCHEMA_RULES: Mapping[str, str] = {
    "minimum": "must be >= {value}",
    "maximum": "must be <= {value}",
    "exclusiveMinimum": "must be > {value}",
    "exclusiveMaximum": "must be < {value}",
    "multipleOf": "must be a multiple of {value}",
    "minLength": "must have at least {value} characters",
    "maxLength": "must have at most {value} characters",
    "minItems": "must have at least {value} items",
    "maxItems": "must have at most {value} items",
    "minProperties": "must have at least {value} properties",
    "maxProperties": "must have at most {value} properties",
    "pattern": "must match {value}",
    "format": "must be a valid {value}",
    "enum": "must be one of {value}",
    "const": "must be {value}",
    "uniqueItems": "must not repeat items",
}


def rejected(problems: Iterable[Problem]) -> str:
    """Return the text for these problems: at most 5 of them, at most 600 characters."""
    rules: dict[str, list[str]] = {}
    for path, rule in problems:
        known = rules.setdefault(path, [])
        if rule not in known:
            known.append(rule)
    lines = [f"{path}: {' or '.join(broken)}" if path else " or ".join(broken) for path, broken in rules.items()]
    shown = [_shortened(line, MAX_CHARACTERS // MAX_PROBLEMS - 10) for line in lines[:MAX_PROBLEMS]]
    if len(shown) == 1:
        shown = [_shortened(lines[0], MAX_CHARACTERS - 40)]
    rest = f"; and {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
    return f"Arguments rejected: {'; '.join(shown)}{rest}."


def of_model(error: pydantic.ValidationError, names: frozenset[str]) -> list[Problem]:
    """Return the problems pydantic found; `names` are the property names of the schema, shown in paths."""
    problems: list[Problem] = []
    for found in error.errors(include_url=False, include_input=False):
        kind = found["type"]
        location = found["loc"]
        own = location[-1:] if kind in ("extra_forbidden", "unexpected_keyword_argument") else ()
        context = found.get("ctx", {})
        problems.append((_path(location, names, own), _model_rule(kind, context)))
    return problems


def of_schema(errors: Iterable[Any], names: frozenset[str]) -> list[Problem]:
    """Return the problems jsonschema-rs found in raw arguments."""
    problems: list[Problem] = []
    for found in errors:
        path = tuple(found.instance_path)
        keyword, value = str(found.kind.name), found.kind.value
        if keyword == "required":
            problems.append((_path((*path, value), names, (value,)), "missing"))
        elif keyword in ("additionalProperties", "unevaluatedProperties") and isinstance(value, list):
            unexpected = cast("list[str]", value)
            problems += [(_path((*path, key), names, (key,)), "not a known parameter") for key in unexpected]
        else:
            problems.append((_path(path, names, ()), _schema_rule(keyword, value)))
    return problems


def property_names(schema: object) -> frozenset[str]:
    """Return every property name a JSON Schema declares, at any depth."""
    found: set[str] = set()
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            members = cast("dict[str, object]", part)
            if isinstance(members.get("properties"), dict):
                found.update(cast("dict[str, object]", members["properties"]))
            pending.extend(members.values())
        elif isinstance(part, list):
            pending.extend(cast("list[object]", part))
    return frozenset(found)


def _model_rule(kind: str, context: Mapping[str, Any]) -> str:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in _LIMITS:
        try:
            return _LIMITS[kind].format_map(context)
        except KeyError:
            return "not valid"
    # int_type, int_parsing, datetime_from_date_parsing, ...: the first part of the code names what was expected.
    for name in sorted(_KINDS, key=len, reverse=True):
        if kind.startswith(f"{name}_"):
            return f"must be {_KINDS[name]}"
    return "not valid"


def _schema_rule(keyword: str, value: object) -> str:
    if keyword == "type":
        kinds = cast("list[str]", value) if isinstance(value, list) else [str(value)]
        return f"must be {' or '.join(_TYPES.get(kind, kind) for kind in kinds)}"
    rule = _SCHEMA_RULES.get(keyword)
    if rule is None:
        return "does not fit the schema"
    if isinstance(value, (list, tuple)):
        return rule.format(value=", ".join(_written(item) for item in cast("list[object]", value)))
    return rule.format(value=value if keyword in ("pattern", "format") else _written(value))


def _written(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _path(location: tuple[int | str, ...], names: frozenset[str], own: tuple[int | str, ...]) -> str:
    """Join a location. Keys of free-form objects are values of a kind, and union tags are ours: both are left out."""
    path = ""
    for index, segment in enumerate(location):
        last = index == len(location) - 1
        if isinstance(segment, int):
            path += f"[{segment}]"
        elif segment in names or (last and segment in own):
            path += f".{_name(segment)}" if path else _name(segment)
    return path


def _name(segment: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in segment)
    return _shortened(printable, _MAX_NAME)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
