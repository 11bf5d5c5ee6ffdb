"""The official client, in strict mode, against everything a turn shows: frames, bodies and the SDK's own helpers."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from answerback.testing import Script, call, calls, fail, reason, rule, run_harness, say, sleep
from harness.flow import created, following, function, open_session, post, result, strict_harness, until

TOUR = Script(
    rule("fail", reason("Hm."), fail("server_overloaded", "Too much.")),
    rule(
        "tour",
        reason("Need two customers"),
        say("One moment.", phase="commentary"),
        calls(call("get_customer", customer_id="1"), call("get_customer", customer_id="2")),
        sleep(0.001),
        say("First: {{ results[0].output.name }}, second failed: {{ results[1].error }}"),
    ),
)

GOLDEN = [
    "created",
    "turn.created",
    "turn.item.added",
    "in_progress",
    "turn.in_progress",
    "turn.item.added",
    "turn.item.added",
    "requires_action",
    "turn.item.added",
    "requires_action",
    "turn.item.added",
    "in_progress",
    "turn.item.done",
    "turn.item.done",
    "turn.item.added",
    "turn.content_part.added",
    "turn.output_text.delta",
    "turn.output_text.done",
    "turn.content_part.done",
    "turn.item.done",
    "turn.completed",
    "idle",
]
"""The order of a creation stream with two parallel calls whose results come in reverse, one of them failing."""


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_a_strict_client_reads_every_frame_and_body_of_a_tour(transport: str) -> None:
    async with strict_harness(TOUR, transport=transport) as (_, client):
        sessions = client.beta.agents.sessions
        async with created(client, "tour") as stream:
            event = await stream.seen("requires_action")
            first, second = event.session.required_actions
            name = {"success": True, "output": json.dumps({"name": "Ada"})}
            await post(client, event.session.id, result(first.call_id, first.turn_id, **name))
            failing = {"success": False, "error": "no such customer"}
            await post(client, event.session.id, result(second.call_id, second.turn_id, **failing))
            await stream.end()
        session_id = event.session.id
        text = next(e.text for e in reversed(stream.events) if e.type.endswith("output_text.done"))
        assert text == "First: Ada, second failed: no such customer"
        async with following(client, session_id) as stream:
            await post(client, session_id, {"type": "agent.session.input.message", "input": [user("fail")]})
            await stream.seen("idle")
        assert stream.types[-3:] == ["error", "turn.failed", "idle"]
        session = await sessions.retrieve(session_id)
        assert (session.status, session.error) == ("idle", None), "a failed turn does not fail its session"
        turns = [turn async for turn in sessions.turns.list(session_id)]
        assert [turn.status for turn in turns] == ["failed", "completed"]
        assert (await sessions.turns.retrieve(turns[0].id, session_id=session_id)).error is not None
        items = [item async for item in sessions.turns.items.list(turns[1].id, session_id=session_id, order="asc")]
        assert [item.type for item in items] == [
            "message", "reasoning", "message", "function_call", "function_call", "function_call_output",
            "function_call_output", "message",
        ]  # fmt: skip
        assert [s.id async for s in sessions.list()] == [session_id]
        assert (await sessions.update(session_id, metadata={"k": "v"})).metadata == {"k": "v"}
        assert (await sessions.delete(session_id)).deleted


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


async def test_two_parallel_calls_come_in_the_golden_order_with_the_golden_fields() -> None:
    async with strict_harness() as (_, client):
        async with created(client, "look", stream_options={"include_obfuscation": False}) as stream:
            event = await stream.seen("requires_action")
            session_id, turn_id = event.session.id, event.session.required_actions[0].turn_id
            turn = await client.beta.agents.sessions.turns.retrieve(turn_id, session_id=session_id)
            assert turn.status == "waiting"
            await post(client, session_id, result("call_2", turn_id, success=False, error="not found"))
            await post(client, session_id, result("call_1", turn_id))
            await stream.end()
        assert stream.types == GOLDEN
        assert stream.error is None, "the creation stream ends by itself after idle"
        by_place = [event.to_dict() for event in stream.events]
        assert all("obfuscation" not in event for event in by_place)
        assert len({event["event_id"] for event in by_place}) == len(by_place)
        assert by_place[0]["session"]["status"] == "in_progress"
        assert "session_id" not in by_place[0]
        assert by_place[1]["turn"]["status"] == "queued"
        asked = {"item": by_place[2]["item"] | {"id": "-"}, "output_index": by_place[2]["output_index"]}
        content = [{"type": "input_text", "text": "look"}]
        assert asked == {
            "output_index": None,
            "item": {
                "id": "-", "type": "message", "role": "user", "phase": None, "status": "completed",
                "content": content, "turn_id": turn_id,
            },
        }  # fmt: skip
        added = [(e["output_index"], e["item"]["call_id"], e["item"]["status"]) for e in by_place[5:7]]
        assert added == [(0, "call_1", "in_progress"), (1, "call_2", "in_progress")]
        assert [len(by_place[n]["session"]["required_actions"]) for n in (7, 9, 11)] == [2, 1, 0]
        assert by_place[7]["session"]["required_actions"][0] == {
            "type": "function_call", "turn_id": turn_id, "call_id": "call_1", "name": "get_customer",
            "arguments": {"customer_id": "1"},
        }  # fmt: skip
        failed, fine = by_place[8]["item"], by_place[10]["item"]
        assert (failed["output"], failed["error"], failed["status"]) == (None, "not found", "failed")
        assert (fine["output"], fine["error"], fine["status"]) == ("{}", None, "completed")
        assert by_place[8]["output_index"] is by_place[10]["output_index"] is None
        assert [(e["output_index"], e["item"]["status"]) for e in by_place[12:14]] == [
            (0, "completed"),
            (1, "completed"),
        ]
        assert (by_place[14]["item"]["content"], by_place[14]["item"]["phase"]) == ([], "final_answer")
        assert [by_place[n]["output_index"] for n in range(14, 20)] == [2] * 6
        assert (by_place[20]["usage"], by_place[20]["turn"]["status"]) == (None, "completed")
        assert by_place[21]["session"]["status"] == "idle"


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_the_official_stream_helper_completes_a_turn(transport: str) -> None:
    async def get_customer(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": f"customer {arguments['customer_id']}"}

    script = Script(
        rule("names", calls(call("get_customer", customer_id="1"), call("get_customer", customer_id="2")),
             say("{{ results | map(attribute='output') | map(attribute='name') | join(', ') }}")),
        rule(say("Hello.")),
    )  # fmt: skip
    async with strict_harness(script, transport=transport, knobs={"registration_gap": 0.05}) as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        helper = client.beta.agents.sessions.stream(
            session.id, input="names", tool_handlers={"get_customer": get_customer}
        )
        async with helper as stream:
            answer = await stream.get_final_result()
        assert answer.output_text == "customer 1, customer 2"


async def test_the_official_creation_stream_runs_tool_handlers() -> None:
    async def get_customer(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async with strict_harness() as (_, client):
        stream = await open_session(client, stream=True, tool_handlers={"get_customer": get_customer})
        with anyio.fail_after(5):
            types = [event.type async for event in stream]
        assert types[0] == "agent.session.created"
        assert types[-2:] == ["agent.session.turn.completed", "agent.session.idle"]


async def test_the_guides_own_flow_answers_an_action_from_the_retrieved_session() -> None:
    def get_customer(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": "Example Customer", "id": arguments["customer_id"]}

    script = Script(rule("who", call("get_customer", customer_id="123"), say("It is {{ results[0].output.name }}.")))
    async with strict_harness(script) as (_, client):
        session = await until(client, (await open_session(client, "who is 123?")).id, "requires_action")
        for action in session.required_actions:
            action = action.to_dict()
            answer = {
                "type": "agent.session.input.tool_result",
                "turn_id": action["turn_id"],
                "call_id": action["call_id"],
            }
            answer.update(success=True, output=json.dumps(get_customer(action["arguments"])))
            await client.beta.agents.sessions.events.create(session.id, events=[answer])
        await until(client, session.id, "idle")
        items = [item async for item in client.beta.agents.sessions.items.list(session.id)]
        assert items[0].output_text == "It is Example Customer."


async def test_a_turn_of_eight_calls_completes_without_any_stream() -> None:
    eight = calls(*(call("get_customer", customer_id=str(n)) for n in range(8)))
    async with strict_harness(Script(rule(eight, say("{{ results | length }} done.")))) as (_, client):
        session = await until(client, (await open_session(client, "go")).id, "requires_action")
        assert len(session.required_actions) == 8
        for action in session.required_actions:
            await post(client, session.id, result(action.call_id, action.turn_id))
        await until(client, session.id, "idle")
        newest = (await client.beta.agents.sessions.items.list(session.id, limit=1)).data[0]
        assert newest.output_text == "8 done."


async def test_the_same_seed_gives_the_same_ids_and_another_seed_gives_others() -> None:
    async def ids(seed: int) -> list[str]:
        async with strict_harness(seed=seed) as (_, client):
            session = await until(client, (await open_session(client, "hi")).id, "idle")
            turn = (await client.beta.agents.sessions.turns.list(session.id)).data[0]
            items = [item.id async for item in client.beta.agents.sessions.items.list(session.id)]
            return [session.id, session.agent.id, turn.id, *map(str, items)]

    assert await ids(1) == await ids(1)
    assert not set(await ids(1)) & set(await ids(2))


async def test_an_async_function_does_not_hold_the_turn_and_is_answered_later() -> None:
    script = Script(rule(calls(call("slow", n=1), call("get_customer", customer_id="1")), say("Going on.")))
    async with strict_harness(script) as (_, client):
        tools = (function("slow", **{"async": True}), function())
        session = await until(client, (await open_session(client, "go", *tools)).id, "requires_action")
        slow, quick = session.required_actions
        assert (slow.name, quick.name) == ("slow", "get_customer")
        await post(client, session.id, result(quick.call_id, quick.turn_id))
        session = await until(client, session.id, "idle")
        assert [action.name for action in session.required_actions] == ["slow"], "still wanted after the turn's end"
        await post(client, session.id, result(slow.call_id, slow.turn_id))
        assert (await client.beta.agents.sessions.retrieve(session.id)).required_actions == []


async def test_a_call_of_a_function_the_session_lacks_becomes_an_error_the_model_sees() -> None:
    script = Script(rule(call("missing"), say("{{ results[0].error }}")))
    async with strict_harness(script) as (_, client):
        async with created(client, "go") as stream:
            await stream.end()
        assert "requires_action" not in stream.types
        assert next(e.text for e in stream.events if e.type.endswith("text.done")) == "unsupported call: missing"


async def test_the_body_of_the_block_raises_its_own_exception_and_no_group() -> None:
    with pytest.raises(LookupError):
        async with run_harness():
            raise LookupError("mine")
    with pytest.raises(LookupError):
        async with run_harness(transport="tcp"):
            raise LookupError("mine")
