"""Streams are optional, and what they carry is for showing: events, deltas, progress, and none of it decides."""

from __future__ import annotations

import anyio
import pytest

from answerback import Handlers, ToolContext
from answerback.testing import Script, call, calls, rule, say
from answerback.wire.events import Event
from integration.rig import PATIENCE, answered_by, answering, live_of, running, until
from wire_player import PlayedSession, play
from wire_player import call as called

AGENT = {"model": "scripted"}


def doubling() -> Handlers:
    """Return one tool."""
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    return handlers


async def test_a_turn_of_eight_calls_completes_by_polling_alone() -> None:
    script = Script(rule(calls(*(call("double", number=n) for n in range(8))), say("{{ results | length }} done")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(doubling(), script, max_streams=0, poll_interval=0.05) as (harness, runtime):
            session = await runtime.open("k", agent=AGENT, input="go")
            turn = await session.wait()
            assert harness.control.state()["sessions"][0]["subscribers"] == 0
    assert turn.output_text == "8 done"
    assert {record.outcome_kind for record in turn.calls} == {"ok"}
    assert len(turn.calls) == 8


async def test_a_turn_of_eight_calls_completes_by_waking_alone() -> None:
    session = PlayedSession(pending=[called(f"c_{n}", "double", {"number": n}) for n in range(8)])
    async with answering(session, doubling(), max_streams=0, poll_interval=3600) as stage:
        await stage.answered(*(f"c_{n}" for n in range(8)))
        session.require(*(called(f"d_{n}", "double", {"number": n}) for n in range(8)))
        ref = stage.ref
        ref.wake()
        await stage.answered(*(f"d_{n}" for n in range(8)))
        stage.runtime.wake("sess_1")
        stage.runtime.wake("sess_of_somebody_else")
        turn = await ref.wait()
        assert session.opened == 0
    assert turn.status == "completed"


async def test_more_sessions_than_streams_are_polled() -> None:
    sessions = [PlayedSession(session_id=f"sess_{number}") for number in range(3)]
    with anyio.fail_after(PATIENCE):
        async with play(*sessions) as player, running(player, doubling(), max_streams=1, poll_interval=0.05) as stage:
            for session in sessions:
                await stage.runtime.attach(session.id)
            await player.until(lambda: sum(session.live for session in sessions) == 1)
            for session in sessions:
                session.require(called(f"c_{session.id}", "double", {"number": 1}))
            await stage.answered(*(f"c_{session.id}" for session in sessions))
            assert sum(session.opened for session in sessions) == 1


async def test_subscribers_get_deltas_progress_and_the_end_in_order() -> None:
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def count(context: ToolContext, to: int) -> int:
        """Count, and tell how far."""
        for number in range(to):
            context.progress(f"at {number}")
        return to

    @handlers.tool(effects="read")
    def count_in_a_thread(context: ToolContext) -> int:
        """Tell from a thread."""
        context.progress("from a thread")
        return 0

    script = Script(
        rule("zero", say("Ready.")), rule(calls(call("count", to=2), call("count_in_a_thread")), say("A" * 60))
    )
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="zero")
            await session.wait()
            async with session.events() as events:
                await session.send("count")
                seen: list[Event] = []
                async for event in events:
                    seen.append(event)
                    if event.ends_turn:
                        break
    told = [event.text for event in seen if event.type == "answerback.call.progress"]
    assert sorted(told, key=str) == ["at 0", "at 1", "from a thread"]
    assert told.index("at 0") < told.index("at 1")
    assert "".join(event.delta or "" for event in seen if event.is_delta) == "A" * 60


async def test_deltas_nobody_subscribed_to_never_reach_the_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    session = PlayedSession()
    delta = {"type": "agent.session.turn.output_text.delta", "session_id": "sess_1", "turn_id": "turn_1", "delta": "x"}
    async with answering(session, doubling()) as stage:
        await stage.player.until(lambda: bool(session.followers))
        live = live_of(stage.runtime)
        published: list[str] = []
        publish = live.publish

        def watched(event: Event) -> None:
            published.append(event.type)
            publish(event)

        monkeypatch.setattr(live, "publish", watched)
        for _ in range(10):
            session.publish(delta)
        session.publish({"type": "agent.session.turn.note", "session_id": "sess_1"})
        await until(live, lambda: "agent.session.turn.note" in published)
        assert "agent.session.turn.output_text.delta" not in published
        async with stage.ref.events() as events:
            session.publish(delta)
            while not (await events.receive()).is_delta:
                pass


async def test_a_subscriber_that_does_not_read_loses_its_oldest_events_and_holds_up_nobody() -> None:
    session = PlayedSession(pending=[called("c_a", "double", {"number": 4})])
    async with answering(session, doubling()) as stage:
        await stage.answered("c_a")
        ref = stage.ref
        async with ref.events() as lagging, ref.events() as reading:
            for number in range(3000):
                session.publish({"type": "agent.session.turn.note", "event_id": f"note_{number}"})
            session.require(called("c_b", "double", {"number": 5}, turn_id="turn_2"))
            session.publish(session.snapshot_event())
            await stage.answered("c_b")
            while (await reading.receive()).event_id != "note_2999":
                pass
            first = (await lagging.receive()).event_id or ""
    assert first.startswith("note_")
    assert int(first.removeprefix("note_")) > 1000


async def test_subscriptions_end_with_the_runtime() -> None:
    session = PlayedSession()
    seen: list[str] = []
    done = anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            async with answering(session, doubling()) as stage:
                await stage.player.until(lambda: bool(session.followers))
                ref = stage.ref
                subscribed = anyio.Event()

                async def follow() -> None:
                    async with ref.events() as events:
                        subscribed.set()
                        seen.extend([event.type async for event in events])
                    done.set()

                group.start_soon(follow)
                await subscribed.wait()
            await done.wait()
