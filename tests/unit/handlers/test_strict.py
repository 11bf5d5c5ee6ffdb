"""The strict form of schemas for the Responses API."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from answerback.errors import ToolDefinitionError
from answerback.handlers.registry import Handlers


class Location(TypedDict):
    lat: float
    long: float


class Labelled(TypedDict):
    lat: float
    label: NotRequired[str]


class Color(enum.Enum):
    RED = "red"


class Node(BaseModel):
    value: int
    children: list[Node] = []
    parent: Annotated[Node | None, Field(description="Above.")] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]


def strict_of(function: Callable[..., Any]) -> dict[str, Any]:
    (definition,) = (tool.definition("responses") for tool in (Handlers().tool(function),))
    assert definition["strict"] is True
    parameters: dict[str, Any] = definition["parameters"]
    return parameters


def test_a_definition_with_keys_beside_its_reference_is_copied_in() -> None:
    def fetch_weather(location: Location) -> str:
        """Look up the weather.

        Args:
            location: Where to look.
        """
        return f"{location}"

    place = {
        "properties": {"lat": {"type": "number"}, "long": {"type": "number"}},
        "required": ["lat", "long"],
        "type": "object",
        "additionalProperties": False,
    }
    assert strict_of(fetch_weather) == {
        "$defs": {"Location": place},
        "properties": {"location": {"description": "Where to look.", **place}},
        "required": ["location"],
        "type": "object",
        "additionalProperties": False,
    }


def test_optional_parameters_are_required_nullable_and_lose_the_default_null_only() -> None:
    def read(path: str, directory: str | None = None, limit: int = 3) -> str:
        """Read."""
        return f"{path}{directory}{limit}"

    assert strict_of(read) == {
        "properties": {
            "path": {"type": "string"},
            "directory": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "limit": {"type": "integer", "default": 3},
        },
        "required": ["path", "directory", "limit"],
        "type": "object",
        "additionalProperties": False,
    }


def test_a_tool_without_parameters_requires_an_empty_list() -> None:
    def nothing() -> str:
        """Do nothing."""
        return ""

    assert strict_of(nothing) == {"properties": {}, "type": "object", "additionalProperties": False, "required": []}


def test_a_key_that_may_be_absent_becomes_nullable_and_a_null_for_it_is_absent() -> None:
    def near(p: Labelled, many: list[Labelled]) -> str:
        """Near."""
        return f"{'label' in p}"

    tool = Handlers().tool(near)
    described = tool.definition("responses")["parameters"]["$defs"]["Labelled"]
    assert described["properties"]["label"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert described["required"] == ["lat", "label"]
    raw = {"p": {"lat": 1, "label": None}, "many": [{"lat": 2, "label": None}, {"lat": 3, "label": "x"}]}
    assert tool.bind(json.dumps(raw).encode()).values == {
        "p": {"lat": 1.0},
        "many": [{"lat": 2.0}, {"lat": 3.0, "label": "x"}],
    }


def test_unions_of_one_become_unions_of_any_and_nested_models_are_closed() -> None:
    def pet(one: Annotated[Cat | Dog, Field(discriminator="kind")], color: Color | None = None) -> str:
        """Pet."""
        return f"{one}{color}"

    found = strict_of(pet)
    assert found["properties"]["one"]["anyOf"] == [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]
    assert "oneOf" not in json.dumps(found)
    assert found["$defs"]["Cat"]["required"] == ["kind", "lives"]
    assert found["$defs"]["Cat"]["additionalProperties"] is False
    assert found["properties"]["color"] == {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]}


def test_a_type_that_holds_itself_has_a_strict_form() -> None:
    def tree(n: Annotated[Node, Field(description="The root.")]) -> str:
        """Tree."""
        return f"{n}"

    found = strict_of(tree)
    assert found["$defs"]["Node"]["required"] == ["value", "children", "parent"]
    assert found["properties"]["n"]["description"] == "The root."
    assert found["properties"]["n"]["additionalProperties"] is False


class Loop(BaseModel):
    inner: Annotated[Loop, Field(description="Itself.")]


def test_a_described_reference_to_itself_ends() -> None:
    def loop(n: Loop) -> str:
        """Loop."""
        return f"{n}"

    found = strict_of(loop)
    assert found["properties"]["n"] == {"$ref": "#/$defs/Loop"}
    inner = found["$defs"]["Loop"]["properties"]["inner"]
    assert inner["description"] == "Itself."
    assert inner["properties"]["inner"] == {"$ref": "#/$defs/Loop"}


def test_a_free_form_object_is_refused_with_its_path() -> None:
    def free(options: list[dict[str, Any]]) -> str:
        """Free."""
        return f"{options}"

    tool = Handlers().tool(free)
    assert tool.definition("agents")["parameters"]["properties"]["options"]["items"]["additionalProperties"] is True
    with pytest.raises(ToolDefinitionError, match="/properties/options/items"):
        tool.definition("responses")


def test_the_agents_form_is_left_as_it_is() -> None:
    def read(path: str, directory: str | None = None) -> str:
        """Read."""
        return f"{path}{directory}"

    tool = Handlers().tool(read)
    before = json.dumps(tool.parameters)
    tool.definition("responses")
    tool.definition("agents")["parameters"]["properties"].clear()
    assert json.dumps(tool.parameters) == before
