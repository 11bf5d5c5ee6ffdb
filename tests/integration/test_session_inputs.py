"""Inputs and turns: sent once by key, answered by their own turn, and a wait that disturbs nothing."""

from __future__ import annotations

import anyio
import pytest

from answerback import (
    ConfigurationError,
    Handlers,
    InputRefusedError,
    MemoryStore,
    SessionFailedError,
    SessionGoneError,
)
from answerback.testing import Script, call, calls, fail, fail_session, rule, say
from integration.rig import PATIENCE, answered_by, answering, running
from wire_player import Fault, PlayedSession, WirePlayer, play, turn
from wire_player import call as called

AGENT = {"model": "scripted"}


def messages(player: WirePlayer) -> list[str]:
    """Return the texts of the messages that were posted, repeats included."""
    return [
        part["text"]
        for post in player.posts
        for event in post.events
        if event["type"].endswith(".message")
        for message in event["input"]
        for part in message["content"]
    ]


async def test_a_message_is_answered_by_the_turn_it_started() -> None:
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player, running(player, Handlers()) as stage:
            ref = await stage.runtime.attach("sess_1")
            first = await ref.run("one")
            second = await ref.run("two")
    assert messages(player) == ["one", "two"]
    assert (first.turn_id, second.turn_id) == ("turn_1", "turn_2")
    assert (first.status, first.ok, first.output_text) == ("completed", True, "Done.")
    assert [item.type for item in second.items] == ["message", "message"]


@pytest.mark.parametrize("key", ["order-17", "키 \U0001f511"])
async def test_a_key_is_sent_once_also_by_the_next_process(key: str) -> None:
    store = MemoryStore()
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player:
            async with running(player, Handlers(), store=store) as stage:
                ref = await stage.runtime.attach("sess_1")
                first = await ref.run("one", key=key)
                assert (await ref.run("one", key=key)).turn_id == first.turn_id
            async with running(player, Handlers(), store=store) as stage:
                ref = await stage.runtime.attach("sess_1")
                assert await ref.send("one", key=key) == key
                assert (await ref.wait()).turn_id == first.turn_id
    assert messages(player) == ["one"]


async def test_a_message_queued_by_a_process_that_ended_is_sent_by_the_next() -> None:
    store = MemoryStore()
    session = PlayedSession(faults={"message": [Fault(status=503)] * 3})
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, Handlers(), store=store) as stage:
                ref = await stage.runtime.attach("sess_1")
                await ref.send("one", key="k")
                await player.until(lambda: len(player.posts) == 1)
            async with running(player, Handlers(), store=store) as stage:
                (followed,) = stage.runtime.status().sessions
                assert followed.session_id == "sess_1"
                result = await (await stage.runtime.attach("sess_1")).wait()
    assert result.output_text == "Done."
    assert set(messages(player)) == {"one"}
    assert len({post.key for post in player.posts}) == 1
    assert len(session.turns) == 1


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_message_that_is_refused_in_passing_is_sent_again_under_its_key(status: int) -> None:
    session = PlayedSession(faults={"message": [Fault(status=status), Fault(close=True)]})
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, Handlers()) as stage:
            result = await (await stage.runtime.attach("sess_1")).run("one")
    assert result.output_text == "Done."
    assert len(player.posts) == 3
    assert len({(post.key, post.raw) for post in player.posts}) == 1


async def test_a_message_that_is_refused_for_good_is_reported_and_the_next_one_goes_on() -> None:
    body = {"error": {"code": "invalid_request_error", "message": "no"}}
    session = PlayedSession(faults={"message": [Fault(status=400, body=body)]})
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, Handlers()) as stage:
            ref = await stage.runtime.attach("sess_1")
            with pytest.raises(InputRefusedError) as refused:
                await ref.run("one")
            result = await ref.run("two")
    assert refused.value.session_id == "sess_1"
    assert "400" in (refused.value.code or "")
    assert result.output_text == "Done."
    assert messages(player) == ["one", "two"]


async def test_nothing_is_no_message() -> None:
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player, running(player, Handlers()) as stage:
            ref = await stage.runtime.attach("sess_1")
            with pytest.raises(ConfigurationError):
                await ref.send("")
            with pytest.raises(ConfigurationError):
                await ref.send([])
    assert player.posts == []


async def test_messages_sent_together_arrive_in_order_and_wait_returns_the_last_ones_turn() -> None:
    with anyio.fail_after(PATIENCE):
        async with answered_by(Handlers()) as (harness, runtime):
            session = await runtime.open("k", agent=AGENT, input="zero")
            await session.wait()
            for text in ("one", "two", "three"):
                await session.send(text)
            last = await session.wait()
            sent = [entry for entry in harness.log if entry.kind == "message"]
            items = harness.control.state()["sessions"][0]["items"]
    asked = {item["content"][0]["text"]: item["turn_id"] for item in items if item.get("role") == "user"}
    assert list(asked) == ["zero", "one", "two", "three"]
    assert len(sent) == 3
    # Whether a message starts a turn or steers the one before is the server's choice.
    assert last.turn_id == asked["three"]


async def test_a_message_into_a_running_turn_steers_it_and_is_answered_by_it() -> None:
    gate, entered = anyio.Event(), anyio.Event()
    handlers = Handlers()

    @handlers.tool
    async def dig() -> str:
        """Dig until told."""
        entered.set()
        await gate.wait()
        return "a bone"

    script = Script(rule(call("dig"), say("Found {{ results[0].output }}; you said: {{ input }}")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script) as (harness, runtime):
            session = await runtime.open("k", agent=AGENT, input="dig")
            await entered.wait()
            async with session.events() as events:
                await session.send("and hurry")
                async for event in events:
                    if event.item is not None and event.item.text == "and hurry":
                        break
            gate.set()
            steered = await session.wait()
            turns = harness.control.state()["sessions"][0]["turns"]
    assert len(turns) == 1
    assert steered.turn_id == turns[0]["id"]
    assert steered.output_text == "Found a bone; you said: and hurry"


async def test_waiting_for_less_than_the_turn_takes_cancels_nothing() -> None:
    gate, entered = anyio.Event(), anyio.Event()
    handlers = Handlers()

    @handlers.tool
    async def slow() -> str:
        """Take its time."""
        entered.set()
        await gate.wait()
        return "done"

    script = Script(rule(call("slow"), say("{{ results[0].output }}")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="go")
            await entered.wait()
            with pytest.raises(TimeoutError):
                await session.wait(timeout=0.01)
            with anyio.move_on_after(0.01):
                await session.wait()
            assert runtime.status().running == 1
            gate.set()
            assert (await session.wait(timeout=5)).output_text == "done"


async def test_a_failed_turn_is_a_result_and_the_session_goes_on() -> None:
    script = Script(rule("fail", fail("server_error", "The model is ill.")), rule(say("Fine.")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(Handlers(), script) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="fail")
            failed = await session.wait()
            fine = await session.run("again")
    assert (failed.status, failed.ok, failed.output_text) == ("failed", False, "")
    assert failed.error == {"code": "server_error", "message": "The model is ill."}
    assert failed.usage is None
    assert (fine.status, fine.error, fine.output_text) == ("completed", None, "Fine.")


async def test_a_failed_session_is_an_error_with_the_servers_words() -> None:
    script = Script(rule(fail_session("The container burnt down.")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(Handlers(), script) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="go")
            with pytest.raises(SessionFailedError) as failed:
                await session.wait()
            with pytest.raises(SessionFailedError):
                await session.send("hello?")
            (status,) = runtime.status().sessions
    assert failed.value.session_id == session.id
    assert "burnt down" in (failed.value.error or "")
    assert status.state == "failed"


async def test_a_session_that_disappears_is_an_error_and_its_handlers_are_cancelled() -> None:
    handlers = Handlers()
    entered, ended = anyio.Event(), anyio.Event()

    @handlers.tool
    async def slow() -> None:
        """Wait for the end."""
        entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    session = PlayedSession(pending=[called("c_a", "slow")])
    async with answering(session, handlers) as stage:
        await entered.wait()
        del stage.player.sessions["sess_1"]
        ref = stage.ref
        ref.wake()
        with pytest.raises(SessionGoneError):
            await ref.wait()
        await ended.wait()


async def test_credentials_that_are_refused_set_the_session_aside_and_keep_its_results() -> None:
    session = PlayedSession(faults={"message": [Fault(status=401)]})
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, Handlers()) as stage:
            ref = await stage.runtime.attach("sess_1")
            with pytest.raises(Exception, match="credentials"):
                await ref.run("one")


async def test_the_result_of_a_turn_holds_its_calls_in_order_and_not_those_of_others() -> None:
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def add(left: int, right: int) -> int:
        """Add."""
        return left + right

    script = Script(
        rule("first", calls(call("add", left=1, right=2), call("add", left=3, right=4)), say("ok")),
        rule("second", call("add", left=5, right=6), say("ok")),
    )
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="first")
            first = await session.wait()
            second = await session.run("second")
    assert [record.outcome_kind for record in first.calls] == ["ok", "ok"]
    assert len(second.calls) == 1
    assert {record.key.turn_id for record in second.calls} == {second.turn_id}
    outputs = {item.call_id for item in first.items if item.type == "function_call_output"}
    assert outputs == {record.key.call_id for record in first.calls}


async def test_a_turn_that_other_clients_started_before_is_not_mistaken_for_an_answer() -> None:
    session = PlayedSession()
    session.turns.append(turn("turn_0", "completed"))
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, Handlers()) as stage:
            result = await (await stage.runtime.attach("sess_1")).run("one")
    assert result.turn_id == "turn_2"
