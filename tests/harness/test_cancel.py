"""Cancelling, in both phases of a turn and in between."""

from __future__ import annotations

from answerback.testing import Script, call, rule, say, sleep
from harness.flow import CANCEL, following, open_session, post, strict_harness, until, waiting_session

SLOW = Script(rule("talk", say("A long story that never ends", phase="final_answer")), rule(sleep(3600), say("x")))


async def test_cancel_during_text_leaves_the_message_incomplete() -> None:
    async with strict_harness(SLOW, knobs={"delta_delay": 3600.0}) as (_, client):
        session = await open_session(client, "talk")
        async with following(client, session.id) as stream:
            await post(client, session.id, CANCEL)
            await stream.seen("idle")
        assert stream.types[-3:] == ["turn.item.done", "turn.cancelled", "idle"]
        cancelled = stream.events[-2]
        assert (cancelled.turn.status, cancelled.usage) == ("cancelled", None)
        assert stream.events[-3].item.status == "incomplete"
        items = [item.type async for item in client.beta.agents.sessions.items.list(session.id)]
        assert len(items) == 1, "the incomplete message is not listed"


async def test_cancel_while_a_result_is_awaited_ends_the_turn_without_an_interim_frame() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client)
        async with following(client, session.id) as stream:
            await post(client, session.id, CANCEL)
            idle = await stream.seen("idle")
        assert stream.types[-2:] == ["turn.cancelled", "idle"]
        assert "in_progress" not in stream.types
        assert idle.session.required_actions == []
        turn = (await client.beta.agents.sessions.turns.list(session.id)).data[0]
        assert (turn.status, turn.error) == ("cancelled", None)


async def test_cancel_on_an_idle_session_is_accepted_and_does_nothing() -> None:
    async with strict_harness() as (harness, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        await post(client, session.id, CANCEL)
        assert (harness.log[-1].kind, harness.log[-1].status, harness.log[-1].effect) == ("cancel", 202, False)


async def test_a_cancelled_session_takes_the_next_message() -> None:
    async with strict_harness() as (_, client):
        session = await waiting_session(client, "wait")
        await post(client, session.id, CANCEL)
        await post(client, session.id, {"type": "agent.session.input.message", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]})  # fmt: skip
        await until(client, session.id, "idle")
        turns = [turn.status async for turn in client.beta.agents.sessions.turns.list(session.id)]
        assert turns == ["completed", "cancelled"]


async def test_the_interim_knob_adds_a_frame_and_completion_may_win() -> None:
    async with strict_harness(knobs={"cancel": "interim"}) as (_, client):
        session = await waiting_session(client)
        async with following(client, session.id) as stream:
            await post(client, session.id, CANCEL)
            await stream.seen("idle")
        assert stream.types[-3:] == ["in_progress", "turn.cancelled", "idle"]
    script = Script(rule(sleep(60), say("Done anyway."), call("get_customer"), say("Never.")))
    async with strict_harness(script, knobs={"cancel": "completion_wins"}) as (harness, client):
        session = await open_session(client, "go")
        await post(client, session.id, CANCEL)
        harness.clock.advance(60)
        session = await until(client, session.id, "requires_action")
        await post(client, session.id, CANCEL)
        await until(client, session.id, "idle")
        items = [item.output_text async for item in client.beta.agents.sessions.items.list(session.id)
                 if item.type == "message" and item.role == "assistant"]  # fmt: skip
        assert items == ["Done anyway."]
