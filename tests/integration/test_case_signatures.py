"""Case A27: what a signature says is what the schema says, and what the function gets."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, NotRequired, cast

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from answerback import Handlers, ToolContext, ToolDefinitionError, function_schema
from integration.rig import answering
from wire_player import PlayedSession, call


class Seat(BaseModel):
    """A pydantic model as a parameter."""

    row: int
    side: str | None = None


class Spot(TypedDict):
    """A typed dict as a parameter."""

    x: float
    y: float
    name: NotRequired[str]


@dataclasses.dataclass
class Price:
    """A dataclass as a parameter."""

    amount: int
    currency: str = "KRW"


def book(
    train: Annotated[str, Field(min_length=2)],
    seat: Seat,
    window: bool = False,
    remark: str | None = None,
    wagon: Literal["first", "second"] = "second",
) -> str:
    """Book a seat."""
    return f"{type(seat).__name__} {seat.row} {train} {window} {remark} {wagon}"


def walk(to: Spot) -> str:
    """Walk somewhere."""
    return f"{to['x']} {to['y']} {to.get('name')}"


def charge(price: Price) -> str:
    """Charge a price."""
    return f"{type(price).__name__} {price.amount} {price.currency}"


def convert(amount: float, into: str) -> str:
    """Convert an amount."""
    return f"{amount} {into}"


class Kiosk:
    """An object with methods."""

    factor = 4

    def quote(self, pieces: int) -> int:
        """Quote a price."""
        return pieces * self.factor

    @classmethod
    def sizes(cls, unit: str = "cm") -> list[str]:
        """List the sizes."""
        return [f"{cls.factor}{unit}"]

    @staticmethod
    def opens(day: Literal["mon", "sun"]) -> bool:
        """Tell whether it opens."""
        return day == "mon"


async def refund(context: ToolContext, order: str) -> str:
    """Refund an order."""
    return f"{context.call_id} {order}"


def bare(schema: Any) -> Any:
    """Return a schema without titles, which are decoration."""
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        return {name: bare(member) for name, member in members.items() if name != "title" or isinstance(member, dict)}
    if isinstance(schema, list):
        return [bare(member) for member in schema]  # pyright: ignore[reportUnknownVariableType] - mypy knows it
    return schema


def kiosk_handlers() -> Handlers:
    """Register one of each kind of callable."""
    handlers = Handlers()
    for function in (book, walk, charge, Kiosk().quote, Kiosk.sizes, Kiosk.opens, refund):
        handlers.tool(function)
    handlers.tool(name="to_won")(functools.partial(convert, into="KRW"))
    return handlers


async def test_every_kind_of_callable_gets_what_its_signature_says() -> None:
    wanted: dict[str, tuple[dict[str, object], str]] = {
        "book": ({"train": "KTX", "seat": {"row": 7}}, "Seat 7 KTX False None second"),
        "walk": ({"to": {"x": 1, "y": 2}}, "1.0 2.0 None"),
        "charge": ({"price": {"amount": 12}}, "Price 12 KRW"),
        "quote": ({"pieces": 3}, "12"),
        "sizes": ({}, '["4cm"]'),
        "opens": ({"day": "sun"}, "false"),
        "to_won": ({"amount": 20}, "20.0 KRW"),
        "refund": ({"order": "o-1"}, "c_refund o-1"),
    }
    session = PlayedSession(pending=[call(f"c_{name}", name, wanted[name][0]) for name in wanted])
    async with answering(session, kiosk_handlers()) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in wanted))
    assert {name: accepted[f"c_{name}"].output for name in wanted} == {name: wanted[name][1] for name in wanted}


def test_optional_parameters_stay_optional_and_unknown_ones_are_refused() -> None:
    assert bare(function_schema(book)) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["train", "seat"],
        "properties": {
            "train": {"type": "string", "minLength": 2},
            "seat": {"$ref": "#/$defs/Seat"},
            "window": {"type": "boolean", "default": False},
            "remark": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "wagon": {"type": "string", "enum": ["first", "second"], "default": "second"},
        },
        "$defs": {
            "Seat": {
                "type": "object",
                "description": "A pydantic model as a parameter.",
                "required": ["row"],
                "properties": {
                    "row": {"type": "integer"},
                    "side": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
            }
        },
    }


def test_only_what_the_model_may_choose_is_in_the_schema() -> None:
    shown = {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in kiosk_handlers().definitions()}
    assert shown == {
        "book": ["remark", "seat", "train", "wagon", "window"],
        "walk": ["to"],
        "charge": ["price"],
        "quote": ["pieces"],
        "sizes": ["unit"],
        "opens": ["day"],
        "refund": ["order"],
        "to_won": ["amount"],
    }
    walking = next(tool for tool in kiosk_handlers().definitions() if tool["name"] == "walk")
    assert "name" not in json.dumps(walking["parameters"]["$defs"]["Spot"]["required"])


def positional(value: int, /) -> int:
    """Take a positional-only parameter."""
    return value


def spread(*values: int) -> int:
    """Take any number."""
    return sum(values)


def keywords(**values: int) -> int:
    """Take any name."""
    return sum(values.values())


def untyped(value) -> object:  # type: ignore[no-untyped-def] # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    """Take anything."""
    return value  # pyright: ignore[reportUnknownVariableType]


@pytest.mark.parametrize("function", [Kiosk.quote, positional, spread, keywords, untyped])  # pyright: ignore[reportUnknownArgumentType]
def test_what_cannot_become_a_tool_is_refused_when_it_is_registered(function: Callable[..., object]) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        Handlers().tool(function)
    assert refused.value.tool == function.__name__
    assert str(refused.value)


def test_two_tools_of_one_name_are_refused() -> None:
    handlers = Handlers()
    handlers.tool(walk)
    with pytest.raises(ToolDefinitionError):
        handlers.tool(name="walk")(charge)
