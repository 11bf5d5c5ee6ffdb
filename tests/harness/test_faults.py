"""Faults of each kind: what the client sees, what the server did, and that every firing is logged."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from openai import APIConnectionError, APIStatusError

from answerback.harness.errors import ScriptError
from answerback.harness.faults import read_faults, seeded_faults
from answerback.testing import Fault, Harness
from harness.flow import (
    HEADERS,
    agent,
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

REQUIRES = {"event": "agent.session.requires_action"}


async def follow_a_call(do: dict[str, Any], where: dict[str, Any] | None = None, **knobs: Any) -> Any:
    """Follow a turn with one call from an idle session while one stream fault is in force."""
    fault = Fault(on="stream", do=do, where=REQUIRES if where is None else where)
    async with strict_harness(knobs=knobs) as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        async with following(client, session.id) as stream:
            harness.faults.add(fault)
            await post(client, session.id, message("wait"))
            session = await until(client, session.id, "requires_action")
            action = session.required_actions[0]
            await post(client, session.id, result(action.call_id, action.turn_id))
            await until(client, session.id, "idle")
            if not (do.get("drop") or do.get("cut") or do.get("reset")):
                await stream.seen("idle")
            else:
                await stream.end()
        assert [firing.kind for firing in harness.faults.fired] == [next(iter(do))]
        assert harness.faults.exhausted
        assert [entry.body for entry in harness.log if entry.kind == "fault"] == [f"rule 0 on stream: {next(iter(do))}"]
        return stream


async def test_a_lost_frame_is_missing_and_the_rest_goes_on() -> None:
    stream = await follow_a_call({"lose": True})
    assert "requires_action" not in stream.types
    assert stream.types[-1] == "idle"


async def test_a_dropped_stream_ends_before_the_frame() -> None:
    stream = await follow_a_call({"drop": True})
    assert stream.types[-1] == "turn.item.added"
    assert stream.error is None


async def test_a_cut_stream_ends_in_the_middle_of_the_frame() -> None:
    stream = await follow_a_call({"cut": True})
    assert stream.types[-1] == "turn.item.added"


async def test_a_reset_breaks_the_stream() -> None:
    stream = await follow_a_call({"reset": True})
    assert isinstance(stream.error, APIConnectionError)


async def test_a_duplicated_frame_keeps_its_event_id() -> None:
    stream = await follow_a_call({"duplicate": 2})
    ids = [event.event_id for event in stream.events if event.type == "agent.session.requires_action"]
    assert len(ids) == 3
    assert len(set(ids)) == 1


async def test_a_swapped_frame_comes_after_its_successor() -> None:
    stream = await follow_a_call({"swap": True}, {"event": "agent.session.turn.created"})
    assert stream.types[:3] == ["turn.item.added", "turn.created", "in_progress"]


async def test_an_unknown_event_and_an_error_frame_are_extra() -> None:
    stream = await follow_a_call({"error_frame": True})
    at = stream.types.index("requires_action")
    assert stream.types[at - 1] == "error"
    assert stream.types[-1] == "idle"
    fault = Fault(on="stream", do={"unknown_event": "agent.session.budget_reached"}, where=REQUIRES)
    async with strict_harness(faults=[fault]) as (harness, _):
        async with created(harness.make_client(), "wait") as stream:
            await stream.seen("requires_action")
        assert stream.types[-2:] == ["budget_reached", "requires_action"]


async def test_a_fault_for_one_call_leaves_others_alone() -> None:
    fault = Fault(on="stream", do={"lose": True}, where={"call_id": "call_2", "event": "agent.session.turn.item.added"})
    async with strict_harness(faults=[fault]) as (_, client):
        async with created(client, "look") as stream:
            await stream.seen("requires_action")
        items = [event.item for event in stream.events if event.type == "agent.session.turn.item.added"]
        assert [item.call_id for item in items if item.type == "function_call"] == ["call_1"]


async def test_rules_count_occasions_and_stop() -> None:
    where = {"event": "agent.session.turn.output_text.delta"}
    fault = Fault(on="stream", do={"lose": True}, where=where, after=1, times=2)
    async with strict_harness(faults=[fault], knobs={"delta_size": 1}) as (_, client):
        stream = await open_session(client, "abcd", stream=True)
        deltas = [event.delta async for event in stream if event.type == where["event"]]
        assert "".join(deltas) == "You said: abcd".replace("ou", "", 1)


@pytest.mark.parametrize("kind", ["stall", "ping", "delay"])
async def test_a_held_frame_comes_after_its_seconds_with_or_without_comments(kind: str) -> None:
    fault = Fault(on="stream", do={kind: 5.0}, where=REQUIRES)
    body = {"agent": agent(), "environment": {"type": "none"}, "input": "wait", "stream": True}
    seen = b""
    held = anyio.Event()

    async def read(harness: Harness) -> None:
        nonlocal seen
        url = f"{harness.base_url}/agents/sessions"
        async with harness.http.stream("POST", url, json=body, headers=HEADERS) as response:
            async for chunk in response.aiter_bytes():
                seen += chunk
                if b"agent.session.requires_action" in chunk:
                    held.set()

    async with (
        strict_harness(faults=[fault], knobs={"keepalive": 2.0}) as (harness, client),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read, harness)
        with anyio.fail_after(5):
            while not harness.faults.fired:
                await client.beta.agents.sessions.list()
        for _ in range(5):
            assert not held.is_set()
            harness.clock.advance(1.0)
            # Each request gives the stream's task the time to notice that its clock moved.
            for _ in range(5):
                await client.beta.agents.sessions.list()
        with anyio.fail_after(5):
            await held.wait()
        tasks.cancel_scope.cancel()
    assert seen.count(b": keep-alive") == {"stall": 0, "ping": 5, "delay": 2}[kind]


async def test_a_stream_request_may_be_answered_with_a_status() -> None:
    fault = Fault(on="stream", do={"status": 503, "headers": {"retry-after": "1"}})
    async with strict_harness(faults=[fault]) as (_, client):
        session = await open_session(client, "wait")
        with pytest.raises(APIStatusError) as caught:
            await client.beta.agents.sessions.events.stream(session.id)
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
        stream = await client.beta.agents.sessions.events.stream(session.id)
        await stream.close()


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("apply", [True, False])
async def test_a_post_answered_by_a_fault_was_done_or_not(transport: str, apply: bool) -> None:
    async with strict_harness(transport=transport) as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        harness.faults.add(
            Fault(on="post", do={"status": 503, "apply": apply}, where={"call_id": "call_1"}),
            {"on": "post", "do": {"reset": True, "apply": apply}, "where": {"call_id": "call_2"}},
        )
        with pytest.raises(APIStatusError) as caught:
            await post(client, session.id, result("call_1", turn_id))
        assert caught.value.status_code == 503
        with pytest.raises(APIConnectionError):
            await post(client, session.id, result("call_2", turn_id))
        expected = [("call_1", 503, apply), ("call_2", 0, apply)]
        assert [(e.call_id, e.status, e.effect) for e in harness.log if e.kind == "tool_result"] == expected
        left = len((await client.beta.agents.sessions.retrieve(session.id)).required_actions)
        assert left == (0 if apply else 2)


async def test_a_duplicated_post_is_taken_twice() -> None:
    fault = Fault(on="post", do={"duplicate": 1})
    async with strict_harness(faults=[fault]) as (harness, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        await post(client, session.id, result(action.call_id, action.turn_id))
        assert [(e.status, e.effect) for e in harness.log if e.kind == "tool_result"] == [(202, True), (202, False)]


async def test_a_delayed_post_waits_on_the_harness_clock() -> None:
    async with strict_harness(faults=[Fault(on="post", do={"delay": 60.0})]) as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, client, session.id, message("late"))
            with anyio.fail_after(5):
                while not harness.faults.fired:
                    await client.beta.agents.sessions.list()
            assert not [entry for entry in harness.log if entry.kind == "message"]
            harness.clock.advance(60)
        assert [entry.effect for entry in harness.log if entry.kind == "message"] == [True]


async def test_gets_and_creations_fail_as_told() -> None:
    faults = [Fault(on="get", do={"status": 500}), Fault(on="get", do={"reset": True})]
    async with strict_harness(faults=faults) as (_, client):
        with pytest.raises(APIStatusError):
            await client.beta.agents.sessions.list()
        with pytest.raises(APIConnectionError):
            await client.beta.agents.sessions.list()
        assert (await client.beta.agents.sessions.list()).data == []
    for apply in (True, False):
        body = {"agent": agent(), "environment": {"type": "none"}, "input": "hi"}
        async with strict_harness(faults=[Fault(on="create", do={"status": 502, "apply": apply})]) as (harness, client):
            assert (await raw(harness, "POST", "/agents/sessions", body, headers=HEADERS)).status_code == 502
            assert len((await client.beta.agents.sessions.list()).data) == int(apply)
            assert [(e.status, e.effect) for e in harness.log if e.kind == "create"] == [(502, apply)]


@pytest.mark.parametrize(
    "rule",
    [
        {"on": "webhook", "do": {"drop": True}},
        {"on": "get", "do": {"drop": True}},
        {"on": "stream", "do": {}},
        {"on": "stream", "do": {"explode": True}},
        {"on": "stream", "do": {"drop": True}, "where": {"colour": "red"}},
        {"on": "sky", "do": {"drop": True}},
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_when_it_is_added(rule: dict[str, Any]) -> None:
    with pytest.raises(ScriptError):
        async with strict_harness(faults=[rule]):
            pass


def test_a_seed_draws_the_same_legal_schedule_each_time() -> None:
    assert seeded_faults(42) == seeded_faults(42)
    assert seeded_faults(42) != seeded_faults(43)
    for seed in range(200):
        read_faults(msgspec.to_builtins(seeded_faults(seed)))


@pytest.mark.parametrize("seed", range(6))
async def test_a_patient_client_ends_well_under_any_drawn_schedule(seed: int) -> None:
    """Poll and resend until everything is answered; faults stop, so it must end with each call answered once."""
    async with (
        strict_harness(faults=seeded_faults(seed)) as (harness, client),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_advance, harness)
        session_id = None
        done = False
        with anyio.fail_after(15):
            while not done:
                try:
                    session_id = session_id or (await open_session(client)).id
                    session = await client.beta.agents.sessions.retrieve(session_id)
                    done = session.status == "idle"
                    for action in session.required_actions:
                        await post(client, session_id, result(action.call_id, action.turn_id))
                except (APIStatusError, APIConnectionError):
                    continue
        tasks.cancel_scope.cancel()
        effects = [entry.call_id for entry in harness.log if entry.kind == "tool_result" and entry.effect]
        assert sorted(filter(None, effects)) == ["call_1", "call_2"]


async def _advance(harness: Any) -> None:
    while True:
        harness.clock.advance(1)
        await anyio.lowlevel.checkpoint()
