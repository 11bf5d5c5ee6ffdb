"""Cases A07 and A16: a call is (session, turn, call); what is repeated or long over is no new call."""

from __future__ import annotations

import anyio

from answerback import Handlers
from answerback.store.memory import MemoryStore
from integration.rig import answering, live_of, rows, running, until_taken
from wire_player import Close, Frame, PlayedSession, Require, Snapshot, UntilAnswered, call, play


def echoing() -> tuple[Handlers, list[str]]:
    """Return a tool that gives back what it got, and the list of what it got."""
    handlers = Handlers()
    heard: list[str] = []

    @handlers.tool
    async def echo(word: str) -> str:
        """Give back a word."""
        heard.append(word)
        return f"<{word}>"

    return handlers, heard


async def test_one_call_id_in_two_turns_is_two_calls() -> None:
    handlers, heard = echoing()
    second = call("call_0", "echo", {"word": "two"}, turn_id="turn_2")
    session = PlayedSession(
        pending=[call("call_0", "echo", {"word": "one"})],
        streams=[[Snapshot(), UntilAnswered(["call_0"]), Require([second]), Snapshot()]],
    )
    store = MemoryStore()
    async with answering(session, handlers, store=store) as stage:
        first, again = await stage.posted("call_0", 2)
        await until_taken(stage, "call_0")
    assert heard == ["one", "two"]
    assert [(first.turn_id, first.output), (again.turn_id, again.output)] == [("turn_1", "<one>"), ("turn_2", "<two>")]
    assert first.key != again.key
    async with store:
        assert len(await store.calls()) == 2


async def test_one_call_id_with_equal_arguments_in_two_sessions_is_two_calls() -> None:
    handlers, heard = echoing()
    one = PlayedSession(session_id="sess_1", pending=[call("call_0", "echo", {"word": "same"})])
    two = PlayedSession(session_id="sess_2", pending=[call("call_0", "echo", {"word": "same"})])
    with anyio.fail_after(10):
        async with play(one, two) as player, running(player, handlers) as stage:
            await stage.runtime.attach("sess_1")
            await stage.runtime.attach("sess_2")
            first, second = await stage.posted("call_0", 2)
    assert heard == ["same", "same"]
    assert first.session_id != second.session_id
    assert first.key != second.key


async def test_one_call_id_in_one_turn_with_other_arguments_sets_the_session_aside() -> None:
    handlers, heard = echoing()
    session = PlayedSession(pending=[call("call_0", "echo", {"word": "first"})], settle=False)
    async with answering(session, handlers) as stage:
        await stage.answered("call_0")
        await until_taken(stage, "call_0")
        session.require_again(call("call_0", "echo", {"word": "other"}))
        session.publish(session.snapshot_event())
        live = live_of(stage.runtime)
        while live.record.state == "open":
            await live.changed.wait()
        (status,) = stage.runtime.status().sessions
    assert status.state == "quarantined"
    assert "call_0" in (status.reason or "")
    assert heard == ["first"]


async def test_arguments_may_come_as_text_once_and_as_an_object_later() -> None:
    handlers, heard = echoing()
    gate = anyio.Event()
    session = PlayedSession(pending=[call("call_0", "echo", '{ "word":"x" }')], settle=False)
    session.streams = [[Snapshot()]]

    @handlers.tool
    async def wait() -> None:
        """Keep the turn open."""
        await gate.wait()

    session.require(call("call_1", "wait"))
    async with answering(session, handlers) as stage:
        await stage.answered("call_0")
        session.require_again(call("call_0", "echo", {"word": "x"}))
        session.publish(session.snapshot_event())
        gate.set()
        await stage.answered("call_1")
        (status,) = stage.runtime.status().sessions
    assert status.state == "open"
    assert heard == ["x"]


async def test_repeated_frames_and_reconnects_start_a_running_call_once() -> None:
    handlers = Handlers()
    heard: list[str] = []
    gate = anyio.Event()

    @handlers.tool
    async def echo(word: str) -> str:
        """Give back a word when told to."""
        heard.append(word)
        await gate.wait()
        return word

    old = call("c_old", "echo", {"word": "old"}, turn_id="turn_0")
    history = old | {"id": "item_old", "status": "completed"}
    announced = {"type": "agent.session.turn.item.added", "session_id": "sess_1", "turn_id": "turn_0", "item": history}
    session = PlayedSession(
        pending=[call("c_new", "echo", {"word": "new"})],
        streams=[[Snapshot(), Snapshot(), Frame(announced), Close()], [Snapshot(), Snapshot(), Snapshot()]],
    )
    session.items.append(history)
    store = MemoryStore()
    async with answering(session, handlers, store=store) as stage:
        await stage.player.until(lambda: session.opened >= 2 and session.sent >= 6)
        gate.set()
        await stage.ref.wait()
    assert heard == ["new"]
    assert [result.call_id for result in stage.player.results()] == ["c_new"]
    assert (await rows(store)).keys() == {"c_new"}


async def test_a_repeated_event_id_is_one_event() -> None:
    handlers, heard = echoing()
    session = PlayedSession(settle=False)
    async with answering(session, handlers) as stage:
        ref = stage.ref
        await stage.player.until(lambda: bool(session.followers))
        async with ref.events() as events:
            note = {"type": "agent.session.turn.note", "event_id": "ev_same", "session_id": "sess_1"}
            session.publish(note)
            session.publish(note)
            session.publish({**note, "event_id": "ev_next"})
            names: list[str | None] = []
            while "ev_next" not in names:
                names.append((await events.receive()).event_id)
    assert names[-2:] == ["ev_same", "ev_next"]
    assert names.count("ev_same") == 1
    assert heard == []
