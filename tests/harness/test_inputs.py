"""The input matrix, row by row: what is taken, what is refused with which status, and what it changes."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from openai import APIStatusError

from answerback.testing import Script, call, calls, rule, say, sleep
from harness.flow import (
    CANCEL,
    created,
    following,
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


async def refused(client: Any, session_id: str, *events: dict[str, Any], key: str | None = None) -> Any:
    with pytest.raises(APIStatusError) as caught:
        await post(client, session_id, *events, key=key)
    body: Any = caught.value.body
    return caught.value.status_code, body["code"], body["message"]


async def test_the_first_result_of_a_pending_call_is_accepted_with_an_empty_202() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        body = {"events": [result(action.call_id, action.turn_id)]}
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", body)
        assert (response.status_code, response.content) == (202, b"")


async def test_a_result_before_registration_is_an_unknown_call_and_fine_afterwards() -> None:
    async with (
        strict_harness(knobs={"registration_gap": 60.0}) as (harness, client),
        created(client, "wait") as stream,
    ):
        added = await stream.seen("turn.item.added", 2)
        call_id, turn_id = added.item.call_id, added.turn_id
        answer = result(call_id, turn_id)
        expected = (400, "invalid_request_error", f"Unknown pending tool call: {call_id}")
        assert await refused(client, added.session_id, answer) == expected
        assert (await client.beta.agents.sessions.retrieve(added.session_id)).required_actions == []
        harness.clock.advance(60)
        await stream.seen("requires_action")
        await post(client, added.session_id, answer)
        await stream.end()


async def test_a_call_id_nobody_made_reads_the_same_as_the_race() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        turn_id = session.required_actions[0].turn_id
        expected = (400, "invalid_request_error", "Unknown pending tool call: call_none")
        assert await refused(client, session.id, result("call_none", turn_id)) == expected


async def test_a_call_under_another_turn_is_refused_by_name() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        call_id = session.required_actions[0].call_id
        status, code, text = await refused(client, session.id, result(call_id, "turn_other"))
        assert (status, code) == (400, "invalid_request_error")
        assert text == f"function call {call_id} belongs to a different managed agent turn"


async def test_an_identical_repeat_is_accepted_and_announces_its_output_again_even_after_the_turn() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        answer = result(action.call_id, action.turn_id)
        async with following(client, session.id) as stream:
            await post(client, session.id, answer)
            await stream.seen("idle")
            before = stream.types.count("turn.item.added")
            await post(client, session.id, answer)
            again = await stream.seen("turn.item.added", before + 1)
            assert (again.item.type, again.item.call_id) == ("function_call_output", action.call_id)
        assert [entry.effect for entry in harness.log if entry.kind == "tool_result"] == [True, False]


@pytest.mark.parametrize(
    "other",
    [
        {"success": True, "output": "other"},
        {"success": True, "output": None},
        {"success": False, "error": "x"},
        {"success": True, "output": [{"type": "input_text", "text": "{}"}]},
    ],
)
async def test_a_different_result_for_an_answered_call_is_a_conflict(other: dict[str, Any]) -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "look")
        action = session.required_actions[0]
        await post(client, session.id, result(action.call_id, action.turn_id, success=True, output="{}"))
        status, code, _ = await refused(client, session.id, result(action.call_id, action.turn_id, **other))
        assert (status, code) == (409, "conflict_error")


async def test_a_result_after_the_turn_was_cancelled_is_a_conflict() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        await post(client, session.id, CANCEL)
        status, code, _ = await refused(client, session.id, result(action.call_id, action.turn_id))
        assert (status, code) == (409, "conflict_error")


async def test_any_input_while_the_initial_one_is_pending_is_a_conflict() -> None:
    async with strict_harness(knobs={"admission": "async", "admission_delay": 60.0}) as (harness, client):
        session = await open_session(client, "wait")
        assert session.status == "in_progress"
        expected = (409, "conflict_error", "session initial input is still pending")
        assert await refused(client, session.id, message("more")) == expected
        assert await refused(client, session.id, CANCEL) == expected
        harness.clock.advance(60)
        await until(client, session.id, "requires_action")


async def test_missing_foreign_and_deleted_sessions_are_not_told_apart() -> None:
    async with strict_harness() as (_, client):
        gone = await until(client, (await open_session(client, "hi")).id, "idle")
        await client.beta.agents.sessions.delete(gone.id)
        answers = [await refused(client, name, message("x")) for name in ("sess_none", "%20", gone.id)]
        assert {answer[:2] for answer in answers} == {(404, "not_found_error")}


@pytest.mark.parametrize("given", [{"success": True}, {"success": True, "output": None}])
async def test_a_success_without_output_is_a_result(given: dict[str, Any]) -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        await post(client, session.id, result(action.call_id, action.turn_id, **given))
        await until(client, session.id, "idle")


async def test_a_failure_may_carry_output_which_the_live_event_shows_and_the_list_does_not() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        parts = [{"type": "input_text", "text": "partial"}]
        answer = result(action.call_id, action.turn_id, success=False, error="broke", output=parts)
        async with following(client, session.id, extra_query={"include_obfuscation": False}) as stream:
            await post(client, session.id, answer)
            await stream.seen("idle")
        live = next(e.item for e in stream.events if getattr(e, "item", None) and e.item.type == "function_call_output")
        assert (live.output[0].text, live.error, live.status) == ("partial", "broke", "failed")
        listed = [i async for i in client.beta.agents.sessions.items.list(session.id) if i.type == live.type]
        assert (listed[0].output, listed[0].error) == (None, "broke")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"success": True, "output": {"a": 1}}, "events[0].output"),
        ({"success": True, "output": 1}, "events[0].output"),
        ({"success": True, "output": [{"type": "input_audio"}]}, "events[0].output[0].type"),
        ({"success": True, "output": [{"type": "input_text", "text": "x", "bold": True}]}, "events[0].output[0].bold"),
        ({"success": "yes"}, "events[0].success"),
        ({"success": None}, "events[0].success"),
        ({"success": True, "error": "x"}, "events[0].error"),
        ({"success": True, "note": "x"}, "events[0].note"),
        ({"success": True, "turn_id": ""}, "events[0].turn_id"),
    ],
)
async def test_a_result_of_the_wrong_shape_is_refused_by_its_path(given: dict[str, Any], param: str) -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client, "wait")
        action = session.required_actions[0]
        body = {"events": [{**result(action.call_id, action.turn_id), "output": None, **given}]}
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", body)
        assert refusal(response) == (400, "invalid_request_error", param)


BATCHES: list[tuple[Any, int, str | None]] = [
    ({"events": []}, 202, None),
    ({"events": None}, 400, "events"),
    ({}, 400, "events"),
    ({"events": "x"}, 400, "events"),
    ({"events": [{"type": "agent.session.input.hum"}]}, 400, "events[0].type"),
    ({"events": [1]}, 400, "events[0]"),
    ({"events": [], "more": 1}, 400, "more"),
    ({"events": [{"type": "agent.session.input.message", "input": "hi"}]}, 400, "events[0].input"),
    ({"events": [{"type": "agent.session.input.message", "input": []}]}, 400, "events[0].input"),
    ({"events": [message("")]}, 400, "events[0].input[0].content[0].text"),
    ({"events": [message("   ")]}, 202, None),
    ({"events": [message("x")] * 65}, 400, "events"),
]


@pytest.mark.parametrize(("body", "status", "param"), BATCHES)
async def test_batches_and_messages_are_read_as_observed(body: Any, status: int, param: str | None) -> None:
    async with strict_harness() as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", body)
        assert response.status_code == status
        if status == 400:
            assert refusal(response)[2] == param


async def test_approvals_are_refused_by_the_name_of_their_feature() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client, "wait")
        kind = "agent.session.input.mcp_approval_request_result"
        empty: dict[str, Any] = {}
        body: Any = {"events": [{"type": kind, "request_id": "r", "response": empty}]}
        response = await raw(harness, "POST", f"/agents/sessions/{session.id}/events", body)
        assert refusal(response)[1] == "unsupported_operation"
        assert kind in response.json()["error"]["message"]


async def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        good, bad = result("call_1", turn_id), result("call_none", turn_id)
        assert (await refused(client, session.id, good, bad))[0] == 400
        assert len((await client.beta.agents.sessions.retrieve(session.id)).required_actions) == 2
        await post(client, session.id, good, result("call_2", turn_id))
        await until(client, session.id, "idle")
        entries = [entry for entry in harness.log if entry.kind == "tool_result"]
        assert [(e.call_id, e.status, e.effect) for e in entries] == [
            ("call_1", 400, False), ("call_none", 400, False), ("call_1", 202, True), ("call_2", 202, True),
        ]  # fmt: skip
        assert entries[0].request == entries[1].request != entries[2].request == entries[3].request


async def test_a_batch_sees_its_own_earlier_events() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        one, other = result("call_1", turn_id), result("call_1", turn_id, success=True, output="other")
        assert (await refused(client, session.id, one, other))[0] == 409
        assert (await refused(client, session.id, CANCEL, one))[0] == 409
        await post(client, session.id, one, one, CANCEL)
        await until(client, session.id, "idle")


async def test_the_same_call_id_in_another_turn_is_another_call() -> None:
    async with strict_harness() as (_, client):
        first = await waiting_session(client)
        turn_id = first.required_actions[0].turn_id
        await post(client, first.id, result("call_1", turn_id), result("call_2", turn_id))
        await until(client, first.id, "idle")
        await post(client, first.id, message("look"))
        second = await until(client, first.id, "requires_action")
        assert second.required_actions[0].call_id == "call_1"
        assert second.required_actions[0].turn_id != turn_id
        other = {"success": True, "output": "new"}
        await post(client, first.id, result("call_1", second.required_actions[0].turn_id, **other))


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_message_on_an_idle_session_starts_a_turn_and_one_during_it_steers() -> None:
    script = Script(rule("begin", sleep(60), call("get_customer"), say("Heard: {{ input }}")), rule(say("?")))
    async with strict_harness(script) as (harness, client):
        session = await open_session(client, "begin")
        async with following(client, session.id) as stream:
            await post(client, session.id, message("and this"))
            steered = await stream.seen("turn.item.added")
            assert (steered.item.role, steered.output_index) == ("user", None)
            harness.clock.advance(60)
            action = (await stream.seen("requires_action")).session.required_actions[0]
            await post(client, session.id, message("last word"))
            await post(client, session.id, result(action.call_id, action.turn_id))
            await stream.seen("idle")
            assert "turn.created" not in stream.types
            assert next(e.text for e in stream.events if e.type.endswith("text.done")) == "Heard: last word"
            await post(client, session.id, message("next"))
            await stream.seen("turn.created")
            await stream.seen("idle", 2)


async def test_an_accepted_message_may_leave_the_session_idle_for_a_moment() -> None:
    async with strict_harness(knobs={"admission": "async", "admission_delay": 60.0}) as (harness, client):
        session = await open_session(client, "hi")
        harness.clock.advance(60)
        await until(client, session.id, "idle")
        await post(client, session.id, message("wait"))
        assert (await client.beta.agents.sessions.retrieve(session.id)).status == "idle"
        harness.clock.advance(60)
        await until(client, session.id, "requires_action")


# -- idempotency -------------------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_has_no_second_effect() -> None:
    async with strict_harness() as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        await post(client, session.id, message("once"), key="k1")
        await until(client, session.id, "idle")
        await post(client, session.id, message("once"), key="k1")
        turns = [turn async for turn in client.beta.agents.sessions.turns.list(session.id)]
        assert len(turns) == 2
        assert [(e.effect, e.status) for e in harness.log if e.kind == "message"] == [(True, 202), (False, 202)]


async def test_the_same_key_with_another_body_is_a_conflict() -> None:
    async with strict_harness() as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        await post(client, session.id, message("one"), key="k1")
        assert (await refused(client, session.id, message("two"), key="k1"))[:2] == (409, "conflict_error")


async def test_a_refused_request_does_not_use_up_its_key() -> None:
    async with (
        strict_harness(knobs={"registration_gap": 60.0}) as (harness, client),
        created(client, "wait") as stream,
    ):
        added = await stream.seen("turn.item.added", 2)
        answer = result(added.item.call_id, added.turn_id)
        assert (await refused(client, added.session_id, answer, key="k"))[0] == 400
        harness.clock.advance(60)
        await stream.seen("requires_action")
        await post(client, added.session_id, answer, key="k")
        await stream.end()


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_a_key_has_1_to_256_characters(key: str) -> None:
    async with strict_harness() as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        assert (await refused(client, session.id, message("x"), key=key))[0] == 400


async def test_the_log_keeps_the_exact_bytes_of_every_result() -> None:
    async with strict_harness() as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        kind = '"type":"agent.session.input.tool_result"'
        element = f'{{ {kind},"call_id" : "call_1", "turn_id":"{turn_id}","success":true}}'
        body = f'{{"events":[ {element} ]}}'.encode()
        await raw(harness, "POST", f"/agents/sessions/{session.id}/events", body)
        entry = harness.log[-1]
        assert entry.body == element
        assert entry.element_sha256 == hashlib.sha256(element.encode()).hexdigest()
        assert entry.body_sha256 == hashlib.sha256(body).hexdigest()
        assert (entry.kind, entry.call_id, entry.turn_id) == ("tool_result", "call_1", turn_id)


async def test_tools_replaced_during_a_turn_count_from_the_next_call() -> None:
    script = Script(rule(call("get_customer"), calls(call("get_customer"), call("fresh")), say("End.")))
    async with strict_harness(script) as (_, client):
        session = await waiting_session(client, "go")
        action = session.required_actions[0]
        await client.beta.agents.sessions.update(session.id, agent={"tools": [function("fresh")]})
        await post(client, session.id, result(action.call_id, action.turn_id))
        session = await until(client, session.id, "requires_action")
        assert [wanted.name for wanted in session.required_actions] == ["fresh"]
