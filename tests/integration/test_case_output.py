"""Cases A08, A13 and A29: what a handler returns is sent as it is or not at all, and what it raises stays here."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import logging
import uuid

import msgspec
import pydantic
import pytest

from answerback import CallState, Handlers, ToolContext, ToolError
from answerback.store.memory import MemoryStore
from integration.rig import answering, rows
from wire_player import PlayedSession, call

LIMIT = 10_485_760
"""Characters the API takes in one result."""


@dataclasses.dataclass
class Owner:
    """A dataclass."""

    name: str


class Line(pydantic.BaseModel):
    """A pydantic model."""

    count: int
    due: dt.date


class Place(msgspec.Struct):
    """A msgspec struct."""

    lat: float


class Colour(enum.Enum):
    """An enum."""

    BLUE = "blue"


async def test_everyday_values_are_sent_as_compact_json_and_stored_in_the_same_bytes() -> None:
    handlers = Handlers()
    noon = dt.datetime(2031, 7, 8, 12, 30, 1, tzinfo=dt.UTC)

    @handlers.tool
    def statement() -> dict[object, object]:
        """Return one of everything."""
        return {
            "when": noon,
            "amount": decimal.Decimal("0.10"),
            "ref": uuid.UUID(int=9),
            "owner": Owner("Lee"),
            "line": Line(count=2, due=noon.date()),
            "place": Place(37.5),
            "colour": Colour.BLUE,
            "pair": ("a", None),
            3: True,
            "huge": 3**50,
            "text": "한글 \u2028 🙂",
        }

    store = MemoryStore()
    async with answering(PlayedSession(pending=[call("c_a", "statement")]), handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.success is True
    assert result.output == (
        '{"when":"2031-07-08T12:30:01Z","amount":"0.10","ref":"00000000-0000-0000-0000-000000000009",'
        '"owner":{"name":"Lee"},"line":{"count":2,"due":"2031-07-08"},"place":{"lat":37.5},"colour":"blue",'
        '"pair":["a",null],"3":true,"huge":717897987691852588770249,"text":"한글 \u2028 🙂"}'
    )
    assert (await rows(store))["c_a"].outcome == result.raw


async def test_plain_values_are_sent_without_decoration() -> None:
    handlers = Handlers()
    values: dict[str, object] = {
        "text": "as it is",
        "empty": "",
        "none": None,
        "number": 2.50,
        "list": [1, "b"],
        "colour": Colour.BLUE,
    }

    @handlers.tool
    def give(name: str) -> object:
        """Return a value by name."""
        return values[name]

    session = PlayedSession(pending=[call(f"c_{name}", "give", {"name": name}) for name in values])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in values))
    sent = {name: accepted[f"c_{name}"].output for name in values}
    assert sent == {
        "text": "as it is",
        "empty": "",
        "none": None,
        "number": "2.5",
        "list": '[1,"b"]',
        "colour": "blue",
    }
    assert all(result.success for result in accepted.values())


async def test_values_that_json_cannot_hold_exactly_fail_loudly() -> None:
    handlers = Handlers()
    values: dict[str, object] = {
        "nan": float("nan"),
        "infinity": {"deep": [float("inf")]},
        "bytes": b"\x00\xff",
        "surrogate": "\ud800",
        "object": object(),
        "function": len,
    }

    @handlers.tool
    def give(name: str) -> object:
        """Return a value by name."""
        return values[name]

    session = PlayedSession(pending=[call(f"c_{name}", "give", {"name": name}) for name in values])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in values))
    for name in values:
        assert accepted[f"c_{name}"].success is False, name
        assert "do not repeat" in (accepted[f"c_{name}"].error or ""), name


async def test_words_of_an_exception_reach_the_application_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[tuple[str, BaseException]] = []

    def on_exception(context: ToolContext, error: BaseException) -> None:
        told.append((context.call_id, error))

    handlers = Handlers(on_exception=on_exception)

    @handlers.tool
    async def connect() -> None:
        """Fail with a secret in the text."""
        raise ConnectionError("mysql://root:s3same@10.9.8.7/prod is down")

    @handlers.tool
    async def refuse() -> None:
        """Fail with words for the model."""
        raise ToolError("There is no order 71.")

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "connect"), call("c_b", "refuse")])
    async with answering(session, handlers, store=store) as stage:
        accepted = await stage.answered("c_a", "c_b")
    sent = b"".join(post.raw for post in stage.player.posts)
    for secret in (b"s3same", b"10.9.8.7", b"mysql"):
        assert secret not in sent
    assert "s3same" not in caplog.text
    assert accepted["c_b"].error == "There is no order 71."
    assert [(name, type(error)) for name, error in told] == [("c_a", ConnectionError)]
    # The text's reference leads to the record in the log.
    reference = (accepted["c_a"].error or "").partition("ref ")[2].partition(")")[0]
    assert reference
    assert reference in caplog.text
    async with store:
        (key,) = [record.key for record in await store.calls() if record.key.call_id == "c_a"]
        assert [step.reason for step in await store.transitions(key) if step.target == "finished"] == [
            f"ref {reference}"
        ]


async def test_a_result_over_the_limit_is_refused_with_its_size_before_it_is_stored() -> None:
    handlers = Handlers()
    ran: list[str] = []

    @handlers.tool
    def dump() -> str:
        """Return too long a text."""
        ran.append("dump")
        return "y" * (LIMIT + 1_234_567)

    @handlers.tool(effects="read")
    def rows_of() -> list[dict[str, object]]:
        """Return too long a list."""
        ran.append("rows_of")
        return [{"number": number, "text": "라마바🙃" * 2000} for number in range(1500)]

    @handlers.tool
    def just_fits() -> str:
        """Return the longest text there can be."""
        ran.append("just_fits")
        return "z" * LIMIT

    store = MemoryStore()
    pending = [call("c_a", "dump"), call("c_b", "rows_of"), call("c_c", "just_fits")]
    async with answering(PlayedSession(pending=pending), handlers, store=store) as stage:
        accepted = await stage.answered("c_a", "c_b", "c_c")
    assert sorted(ran) == ["dump", "just_fits", "rows_of"]
    assert [result.call_id for result in sorted(stage.player.results(), key=lambda one: one.call_id)] == [
        "c_a",
        "c_b",
        "c_c",
    ]
    assert accepted["c_a"].success is False
    assert str(LIMIT + 1_234_567) in (accepted["c_a"].error or "")
    assert accepted["c_b"].success is False
    assert accepted["c_c"].output == "z" * LIMIT
    stored = await rows(store)
    assert {record.state for record in stored.values()} <= {CallState.ACKED, CallState.SUBMITTED}
    assert len(stored["c_a"].outcome or b"") < 1000
    assert json.loads(stored["c_b"].outcome or b"")["success"] is False
