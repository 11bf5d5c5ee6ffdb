"""The strict form of a schema, which the Responses API's `strict: true` asks for.

Every property is required, no other keys are allowed, and what may be left out must be nullable or have a default.
The form follows what the Agents SDK 0.24 sends for the same signatures.
"""

from __future__ import annotations

import copy
from typing import Any, cast

from answerback.errors import ToolDefinitionError


def strict_form(schema: dict[str, Any], *, tool: str) -> dict[str, Any]:
    """Return a strict copy of `schema`.

    Raises:
        ToolDefinitionError: for a free-form object (`dict[str, ...]`), which has no strict form; names its path.
    """
    result = copy.deepcopy(schema)
    _Tightener(schema, tool).tighten(result)
    return result


def widened(schema: dict[str, Any]) -> frozenset[str]:
    """Return the properties of one object that only the strict form makes nullable.

    They may be absent, have no default to say instead, and take no null of their own.
    """
    required = set(schema.get("required", ()))
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    return frozenset(
        name
        for name, described in properties.items()
        if name not in required and "default" not in described and not _takes_null(described)
    )


def without_widened_nulls(value: object, schema: dict[str, Any], root: dict[str, Any]) -> object:
    """Return `value` without the nulls that stand for "absent" in the strict form."""
    schema = _resolved(schema, root)
    if isinstance(value, list):
        items: dict[str, Any] | bool = schema.get("items", True)
        elements = cast("list[object]", value)
        return elements if isinstance(items, bool) else [without_widened_nulls(item, items, root) for item in elements]
    if not isinstance(value, dict) or "properties" not in schema:
        return value  # pyright: ignore[reportUnknownVariableType] - the narrowing to list and dict leaves it so
    absent = widened(schema)
    members = cast("dict[str, object]", value)
    properties = schema["properties"]
    return {
        name: without_widened_nulls(item, properties[name], root) if name in properties else item
        for name, item in members.items()
        if not (item is None and name in absent)
    }


def has_widened(schema: object) -> bool:
    """Whether the strict form of `schema` makes any property nullable."""
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        if isinstance(members.get("properties"), dict) and widened(members):
            return True
        return any(has_widened(part) for part in members.values())
    return isinstance(schema, list) and any(has_widened(part) for part in cast("list[object]", schema))


class _Tightener:
    """Makes one schema strict, in place; `root` is the untouched original, for references."""

    def __init__(self, root: dict[str, Any], tool: str) -> None:
        self._root = root
        self._tool = tool
        self._inlining: list[str] = []

    def tighten(self, schema: dict[str, Any], path: str = "") -> None:
        for name, definition in schema.get("$defs", {}).items():
            self.tighten(definition, f"{path}/$defs/{name}")
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", ()), *schema.pop("oneOf")]
        if schema.get("type") == "object" or "properties" in schema:
            self._close(schema, path)
        for keyword in ("anyOf", "allOf", "prefixItems"):
            for index, part in enumerate(schema.get(keyword, ())):
                self.tighten(part, f"{path}/{keyword}/{index}")
        if isinstance(schema.get("items"), dict):
            self.tighten(schema["items"], f"{path}/items")
        if "default" in schema and schema["default"] is None:
            del schema["default"]
        if "$ref" in schema and len(schema) > 1:
            self._inline(schema, path)

    def _close(self, schema: dict[str, Any], path: str) -> None:
        if schema.get("additionalProperties", False) is not False:
            raise ToolDefinitionError(
                f"Tool {self._tool!r}: {path or 'the arguments'} takes any keys, which has no strict form; "
                "use a model, a dataclass or a list of pairs.",
                tool=self._tool,
            )
        schema["additionalProperties"] = False
        properties: dict[str, Any] = schema.setdefault("properties", {})
        for name in widened(schema):
            described = properties[name]
            outer = {"description": described.pop("description")} if "description" in described else {}
            properties[name] = {"anyOf": [described, {"type": "null"}], **outer}
        for name, described in properties.items():
            self.tighten(described, f"{path}/properties/{name}")
        schema["required"] = list(properties)

    def _inline(self, schema: dict[str, Any], path: str) -> None:
        # A strict grammar takes no keys beside a $ref, so the definition is copied in and the keys laid over it.
        reference = schema.pop("$ref")
        beside = dict(schema)
        schema.clear()
        if reference in self._inlining:
            # A type that holds itself: the inner one keeps the reference and loses the keys.
            schema["$ref"] = reference
            return
        schema.update({**copy.deepcopy(_resolved({"$ref": reference}, self._root)), **beside})
        self._inlining.append(reference)
        self.tighten(schema, path)
        self._inlining.pop()


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    seen: set[str] = set()
    while isinstance(reference := schema.get("$ref"), str) and reference not in seen:
        seen.add(reference)
        target: Any = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            target = target.get(step.replace("~1", "/").replace("~0", "~"), {}) if step else target
        schema = cast("dict[str, Any]", target)
    return schema


def _takes_null(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind) or not schema:
        return True
    if None in schema.get("enum", ()) or ("const" in schema and schema["const"] is None):
        return True
    return any(_takes_null(part) for keyword in ("anyOf", "oneOf") for part in schema.get(keyword, ()))
