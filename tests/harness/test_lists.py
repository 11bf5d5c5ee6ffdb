"""Pages, cursors, filters, updates and deletion."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError

from harness.flow import (
    agent,
    function,
    message,
    open_session,
    post,
    raw,
    refusal,
    result,
    strict_harness,
    until,
    waiting_session,
)


async def sessions_of(client: Any, count: int, **extra: Any) -> list[str]:
    made = [await open_session(client, "hi", **extra) for _ in range(count)]
    return [(await until(client, session.id, "idle")).id for session in made]


async def test_sessions_come_newest_first_in_pages_of_twenty_unless_asked_otherwise() -> None:
    async with strict_harness() as (harness, client):
        made = await sessions_of(client, 23)
        page = (await raw(harness, "GET", "/agents/sessions")).json()
        assert [entry["id"] for entry in page["data"]] == made[:2:-1]
        assert (page["object"], page["has_more"]) == ("list", True)
        assert (page["first_id"], page["last_id"]) == (made[-1], made[3])
        everything = [session.id async for session in client.beta.agents.sessions.list(limit=7, order="asc")]
        assert everything == made
        rest = (await raw(harness, "GET", f"/agents/sessions?after={made[1]}")).json()
        assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == ([made[0]], False)
        empty = (await raw(harness, "GET", f"/agents/sessions?after={made[0]}")).json()
        assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


async def test_a_bad_cursor_is_404_for_sessions_and_turns_and_400_for_items() -> None:
    async with strict_harness() as (harness, client):
        [session_id] = await sessions_of(client, 1)
        path = f"/agents/sessions/{session_id}"
        assert refusal(await raw(harness, "GET", "/agents/sessions?after=sess_x"))[0] == 404
        assert refusal(await raw(harness, "GET", f"{path}/turns?after=turn_x"))[0] == 404
        response = await raw(harness, "GET", f"{path}/items?after=item_x")
        assert refusal(response)[0] == 400
        assert response.json()["error"]["message"] == "Invalid session item ID in `after`"


async def test_limits_are_clamped_for_sessions_and_items_and_refused_for_turns() -> None:
    async with strict_harness() as (harness, client):
        made = await sessions_of(client, 2)
        path = f"/agents/sessions/{made[0]}"
        assert len((await raw(harness, "GET", "/agents/sessions?limit=0")).json()["data"]) == 1
        assert (await raw(harness, "GET", f"{path}/items?limit=1000")).status_code == 200
        assert refusal(await raw(harness, "GET", f"{path}/turns?limit=0")) == (400, "invalid_request_error", "limit")
        assert refusal(await raw(harness, "GET", f"{path}/items?limit=x"))[2] == "limit"
        assert refusal(await raw(harness, "GET", f"{path}/items?order=up"))[2] == "order"
        assert refusal(await raw(harness, "GET", f"{path}/items?colour=red"))[2] == "colour"


async def test_a_filter_by_metadata_wants_every_pair() -> None:
    async with strict_harness() as (_, client):
        red = await sessions_of(client, 2, metadata={"colour": "red", "n": "1"})
        await sessions_of(client, 1, metadata={"colour": "blue"})
        listed = client.beta.agents.sessions.list
        assert [s.id async for s in listed(metadata={"colour": "red"})] == red[::-1]
        assert [s.id async for s in listed(metadata={"colour": "red", "n": "2"})] == []
        first = await client.beta.agents.sessions.retrieve(red[0])
        assert [s.id async for s in listed(agent_id=first.agent.id)] == [red[0]]


async def test_a_turns_items_go_on_from_last_id_which_is_no_items_id() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        await post(client, session.id, result("call_1", turn_id), result("call_2", turn_id))
        await until(client, session.id, "idle")
        path = f"/agents/sessions/{session.id}/turns/{turn_id}/items"
        page = (await raw(harness, "GET", f"{path}?limit=2&order=asc")).json()
        assert page["last_id"] not in [item["id"] for item in page["data"]]
        listed = client.beta.agents.sessions.turns.items.list
        by_cursor = [item.id async for item in listed(turn_id, session_id=session.id, limit=2, order="asc")]
        assert len(by_cursor) == 6
        assert len(set(by_cursor)) == 6


async def test_a_pending_call_is_required_and_not_listed() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        items = [item.type async for item in client.beta.agents.sessions.items.list(session.id)]
        assert items == ["message"]
        await post(client, session.id, result("call_1", turn_id))
        items = [item.type async for item in client.beta.agents.sessions.items.list(session.id, order="asc")]
        assert items == ["message", "function_call", "function_call_output"]


async def test_a_turn_of_another_session_is_not_found() -> None:
    async with strict_harness() as (harness, client):
        one, other = await sessions_of(client, 2)
        turn = (await client.beta.agents.sessions.turns.list(one)).data[0]
        assert refusal(await raw(harness, "GET", f"/agents/sessions/{other}/turns/{turn.id}"))[0] == 404
        assert refusal(await raw(harness, "GET", f"/agents/sessions/{other}/turns/{turn.id}/items"))[0] == 404


async def test_an_update_changes_what_it_names_and_an_empty_one_is_refused() -> None:
    async with strict_harness() as (harness, client):
        [session_id] = await sessions_of(client, 1, metadata={"a": "1"})
        updated = await client.beta.agents.sessions.update(
            session_id, agent={"model": "m2", "reasoning": {"effort": "high"}, "tools": [function("other")]}
        )
        assert (updated.agent.model, updated.agent.reasoning.effort, updated.metadata) == ("m2", "high", {"a": "1"})
        assert [tool.type for tool in updated.agent.tools] == ["function"]
        cleared = await client.beta.agents.sessions.update(session_id, metadata=None, agent={"tools": None})
        assert (cleared.metadata, cleared.agent.tools, cleared.agent.model) == ({}, [], "m2")
        response = await raw(harness, "POST", f"/agents/sessions/{session_id}", {})
        assert response.json()["error"]["message"] == "At least one update field is required."
        response = await raw(harness, "POST", f"/agents/sessions/{session_id}", {"agent": {"instructions": "x"}})
        assert refusal(response) == (400, "invalid_request_error", "agent.instructions")


async def test_only_an_idle_session_without_required_actions_is_deleted_and_again() -> None:
    async with strict_harness(knobs={"admission": "async", "admission_delay": 60.0}) as (harness, client):
        session = await open_session(client, "wait")
        with pytest.raises(APIStatusError) as caught:
            await client.beta.agents.sessions.delete(session.id)
        assert caught.value.status_code == 409, "its initial input is pending"
        harness.clock.advance(60)
        await until(client, session.id, "requires_action")
        with pytest.raises(APIStatusError) as caught:
            await client.beta.agents.sessions.delete(session.id)
        assert caught.value.status_code == 409
        await post(client, session.id, {"type": "agent.session.input.cancel"})
        await post(client, session.id, message("hi"))
        deleted = await client.beta.agents.sessions.delete(session.id)
        assert (deleted.id, deleted.object) == (session.id, "agent.session.deleted"), "the admission window lets it"
        assert (await client.beta.agents.sessions.delete(session.id)).deleted
        with pytest.raises(APIStatusError) as caught:
            await client.beta.agents.sessions.delete("sess_none")
        assert caught.value.status_code == 404


async def test_deleting_a_session_ends_its_streams() -> None:
    async with strict_harness() as (_, client):
        [session_id] = await sessions_of(client, 1)
        stream = await client.beta.agents.sessions.events.stream(session_id)
        await client.beta.agents.sessions.delete(session_id)
        assert [event async for event in stream] == []


async def test_creation_ignores_the_key_and_the_knob_honours_it() -> None:
    body = {"agent": agent(), "environment": {"type": "none"}, "input": "hi"}
    headers = {"openai-beta": "agents=v1", "authorization": "Bearer k", "idempotency-key": "same"}
    async with strict_harness() as (harness, _):
        made = [(await raw(harness, "POST", "/agents/sessions", body, headers=headers)).json()["id"] for _ in "ab"]
        assert made[0] != made[1]
    async with strict_harness(knobs={"create_key": "honour"}) as (harness, _):
        made = [(await raw(harness, "POST", "/agents/sessions", body, headers=headers)).json()["id"] for _ in "ab"]
        assert made[0] == made[1]
        other = {**body, "input": "other"}
        assert refusal(await raw(harness, "POST", "/agents/sessions", other, headers=headers))[0] == 409
