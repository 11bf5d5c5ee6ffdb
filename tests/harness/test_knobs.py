"""Each knob, both ways where the default is not shown elsewhere."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from answerback.harness.errors import ScriptError
from answerback.harness.knobs import Knobs, read_knobs
from answerback.testing import Script, call, knob_table, rule, say
from harness.flow import (
    Recorder,
    created,
    following,
    message,
    open_session,
    post,
    raw,
    result,
    strict_harness,
    until,
    waiting_session,
)


async def play(knobs: dict[str, Any], text: str = "look") -> Recorder:
    """Create a session as a stream and answer its two calls one after the other."""
    async with strict_harness(knobs=knobs) as (_, client):
        async with created(client, text) as stream:
            added = await stream.seen("requires_action", 2 if knobs.get("parallel_calls") == "one_by_one" else 1)
            turn_id = added.session.required_actions[0].turn_id
            await post(client, added.session.id, result("call_1", turn_id))
            await post(client, added.session.id, result("call_2", turn_id))
            await stream.end()
        return stream


def test_the_table_names_type_default_and_section_of_every_knob() -> None:
    table = {row.name: row for row in knob_table()}
    assert set(table) == set(Knobs.__struct_fields__)
    assert all(re.fullmatch(r"§\d+(\.\d+)?", row.section) and row.meaning and row.type for row in table.values())
    assert (table["call_done"].default, table["call_done"].type) == ("'after_result'", "after_result | at_call")


def test_knobs_are_read_from_text_and_bad_ones_are_refused() -> None:
    assert read_knobs({"registration_gap": "0.5", "shrink": "false", "events_status": "204"}) == Knobs(
        registration_gap=0.5, shrink=False, events_status=204
    )
    for bad in ({"colour": "red"}, {"shrink": "perhaps"}, {"events_status": "201"}):
        with pytest.raises(ScriptError):
            read_knobs(bad)


@pytest.mark.parametrize(("status", "content"), [(204, b""), (200, b"{}")])
async def test_an_accepted_input_may_be_answered_otherwise(status: int, content: bytes) -> None:
    async with strict_harness(knobs={"events_status": status}) as (harness, client):
        session = await waiting_session(client)
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", {"events": []})
        assert (response.status_code, response.content) == (status, content)
        await post(client, session.id, message("the SDK takes it"))


async def test_requires_action_may_come_once_per_call() -> None:
    stream = await play({"parallel_calls": "one_by_one", "shrink": False})
    added = ["turn.item.added", "requires_action"]
    assert stream.types[5:9] == added * 2
    sizes = [len(e.session.required_actions) for e in stream.events if e.type.endswith("requires_action")]
    assert sizes == [1, 2]


async def test_a_shrinking_list_may_go_unsaid() -> None:
    assert (await play({"shrink": False})).types.count("requires_action") == 1
    assert (await play({"shrink": True})).types.count("requires_action") == 2


async def test_item_done_of_a_call_may_come_at_the_call() -> None:
    stream = await play({"call_done": "at_call"})
    assert stream.types[5:10] == ["turn.item.added", "turn.item.done"] * 2 + ["requires_action"]
    assert stream.types.count("turn.item.done") == 3


async def test_a_resumed_turn_may_say_so() -> None:
    at = (await play({"resume": "session_and_turn"})).types
    assert at[at.index("in_progress", 5) : at.index("in_progress", 5) + 2] == ["in_progress", "turn.in_progress"]


async def test_a_repeated_result_may_be_silent() -> None:
    async with strict_harness(knobs={"duplicate_result": "silent", "catch_up": "none"}) as (_, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        await post(client, session.id, result("call_1", turn_id))
        async with following(client, session.id) as stream:
            await post(client, session.id, result("call_1", turn_id))
            await post(client, session.id, result("call_2", turn_id))
            await stream.seen("idle")
        items = [event.item for event in stream.events if event.type == "agent.session.turn.item.added"]
        assert [i.call_id for i in items[-3:] if i.type == "function_call_output"] == ["call_2"]


@pytest.mark.parametrize(("rule_name", "count"), [("all", 3), ("none", 0)])
async def test_who_attaches_in_a_turn_is_sent_its_items_or_not(rule_name: str, count: int) -> None:
    async with strict_harness(knobs={"catch_up": rule_name}) as (_, client):
        session = await waiting_session(client)
        async with following(client, session.id) as stream:
            await post(client, session.id, {"type": "agent.session.input.cancel"})
            await stream.seen("idle")
        assert stream.types == ["turn.item.added"] * count + ["turn.cancelled", "idle"]


async def test_catching_up_is_random_by_default_and_follows_the_seed() -> None:
    async def caught_up(seed: int) -> list[int]:
        async with strict_harness(seed=seed) as (_, client):
            session = await waiting_session(client)
            counts: list[int] = []
            for _ in range(8):
                async with following(client, session.id) as stream:
                    await post(client, session.id, message("x"))
                    newest = (await client.beta.agents.sessions.items.list(session.id, limit=1)).data[0]
                    while not stream.events or stream.events[-1].item.id != newest.id:
                        await stream.seen("turn.item.added", len(stream.events) + 1)
                counts.append(len(stream.events))
            return counts

    assert await caught_up(1) == await caught_up(1)
    assert len(set(await caught_up(1))) > 1


async def test_an_idle_session_may_greet_its_subscriber() -> None:
    async with strict_harness(knobs={"attach_idle": True}) as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        async with following(client, session.id) as stream:
            await stream.seen("idle")


async def test_silence_is_broken_by_comments_and_nothing_else() -> None:
    async with strict_harness(knobs={"keepalive": 0.01}) as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        url = f"{harness.base_url}/agents/sessions/{session.id}/events?stream=true"
        headers = {"openai-beta": "agents=v1", "authorization": "Bearer x"}
        async with harness.http.stream("GET", url, headers=headers) as response:
            seen = b""
            chunks = response.aiter_bytes()
            async with aclosing(chunks):
                with anyio.fail_after(5):
                    while seen.count(b"\n\n") < 3:
                        seen += await anext(chunks)
        assert seen == b": keep-alive\n\n" * 3
        assert response.headers["content-type"].startswith("text/event-stream")


async def test_frames_are_padded_unless_the_client_or_the_knob_says_no() -> None:
    async def padded(knob: bool, **options: Any) -> set[bool]:
        async with strict_harness(knobs={"obfuscation": knob}) as (_, client):
            stream = await open_session(client, "hi", stream=True, **options)
            return {event.obfuscation is not None async for event in stream}

    assert await padded(knob=True) == {True}
    assert await padded(knob=False) == {False}
    assert await padded(knob=True, stream_options={"include_obfuscation": False}) == {False}


async def test_frames_have_no_id_and_no_done_marker() -> None:
    async with strict_harness() as (harness, _):
        body = {"agent": {"model": "m"}, "environment": {"type": "none"}, "input": "hi", "stream": True}
        text = (await raw(harness, "POST", "/agents/sessions", body)).text
        lines = [line.partition(":")[0] for line in text.splitlines() if line]
        assert set(lines) == {"event", "data"}
        assert "[DONE]" not in text
        assert text.endswith("\n\n")


async def test_a_reader_too_slow_for_the_buffer_is_cut_off() -> None:
    async with strict_harness(knobs={"stream_buffer": 4, "delta_size": 1}) as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        async with following(client, session.id) as stream:
            await post(client, session.id, message("a text of many pieces"))
            await stream.end()
        assert stream.error is not None


async def test_keys_may_be_forgotten() -> None:
    async with strict_harness(knobs={"idempotency": "forget"}) as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        for _ in "ab":
            await post(client, session.id, message("again"), key="k")
            await until(client, session.id, "idle")
        assert len([turn async for turn in client.beta.agents.sessions.turns.list(session.id)]) == 3


async def test_usage_comes_later_at_once_or_never() -> None:
    async def usages(knob: str) -> list[bool]:
        async with strict_harness(knobs={"usage": knob}) as (harness, client):
            async with created(client, "hi") as stream:
                await stream.end()
            session_id = stream.events[0].session.id
            known: list[bool] = [stream.events[-2].usage is not None]
            for seconds in (0, 3, 5):
                harness.clock.advance(seconds)
                turn = (await client.beta.agents.sessions.turns.list(session_id)).data[0]
                session = await client.beta.agents.sessions.retrieve(session_id)
                known += [turn.usage is not None, session.usage is not None]
            return known

    assert await usages("later") == [False, False, False, True, False, True, True]
    assert await usages("immediate") == [True] * 7
    assert await usages("never") == [False] * 7


async def test_lists_may_include_what_is_unfinished() -> None:
    async with strict_harness(knobs={"items_list": "include"}) as (_, client):
        session = await waiting_session(client)
        items = [item.type async for item in client.beta.agents.sessions.items.list(session.id, order="asc")]
        assert items == ["message", "function_call", "function_call"]


async def test_a_turns_cursor_may_be_the_items_id() -> None:
    async with strict_harness(knobs={"turn_cursor": "item_id"}) as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        turn = (await client.beta.agents.sessions.turns.list(session.id)).data[0]
        page = (await raw(harness, "GET", f"/agents/sessions/{session.id}/turns/{turn.id}/items")).json()
        assert page["last_id"] == page["data"][-1]["id"]


async def test_filtered_lists_may_lag_behind() -> None:
    async with strict_harness(knobs={"list_lag": 60.0}) as (harness, client):
        await open_session(client, "hi", metadata={"k": "v"})
        listed = client.beta.agents.sessions.list
        assert (await listed(metadata={"k": "v"})).data == []
        assert len((await listed()).data) == 1
        harness.clock.advance(60)
        assert len((await listed(metadata={"k": "v"})).data) == 1


@pytest.mark.parametrize(("form", "pattern"), [("long", r"call_[0-9a-f]{280}"), ("unicode", r"call_\w{24}-호출 №1")])
async def test_call_ids_may_take_other_forms(form: str, pattern: str) -> None:
    async with strict_harness(knobs={"call_ids": form}) as (_, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        assert re.fullmatch(pattern, action.call_id)
        await post(client, session.id, result(action.call_id, action.turn_id))
        await until(client, session.id, "idle")


@pytest.mark.parametrize(
    ("form", "expected"), [("string", '{"customer_id":"1"}'), ("malformed", '{"customer_id":"1",')]
)
async def test_arguments_may_be_a_string_and_not_even_json(form: str, expected: str) -> None:
    async with strict_harness(knobs={"arguments": form}) as (_, client):
        session = await waiting_session(client, "wait")
        assert session.required_actions[0].arguments == expected


async def test_deltas_have_a_size_and_a_pace() -> None:
    async with strict_harness(Script(rule(say("abcdef"))), knobs={"delta_size": 2, "delta_delay": 60.0}) as (
        harness,
        client,
    ):
        async with created(client, "go") as stream:
            await stream.seen("turn.content_part.added")
            for count in (1, 2):
                harness.clock.advance(60)
                await stream.seen("turn.output_text.delta", count)
                assert "turn.output_text.done" not in stream.types
            harness.clock.advance(60)
            await stream.end()
        assert [e.delta for e in stream.events if e.type.endswith("delta")] == ["ab", "cd", "ef"]


async def test_a_result_may_be_too_large_and_one_that_fits_is_taken_instead() -> None:
    async with strict_harness(knobs={"max_result_bytes": 300}) as (harness, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        path = f"/agents/sessions/{session.id}/events"
        large = result(action.call_id, action.turn_id, success=True, output="x" * 500)
        assert (await raw(harness, "POST", path, {"events": [large]})).status_code == 400
        small = result(action.call_id, action.turn_id, success=False, error="too large")
        assert (await raw(harness, "POST", path, {"events": [small]})).status_code == 202


async def test_the_session_itself_may_fail() -> None:
    from answerback.testing import fail_session

    async with strict_harness(Script(rule(call("get_customer"), fail_session("gone wrong")))) as (harness, client):
        session = await waiting_session(client, "go")
        action = session.required_actions[0]
        async with following(client, session.id) as stream:
            await post(client, session.id, result(action.call_id, action.turn_id))
            await stream.end()
        assert stream.types[-3:] == ["error", "turn.failed", "failed"]
        failed = await client.beta.agents.sessions.retrieve(session.id)
        assert (failed.status, failed.error, failed.required_actions) == ("failed", "gone wrong", [])
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", {"events": [message("x")]})
        assert response.status_code == 409
        assert (await client.beta.agents.sessions.delete(session.id)).deleted
