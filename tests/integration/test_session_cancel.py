"""Cancelling a turn: one cancel for its handlers, a grace time, and nothing sent for a turn that is over."""

from __future__ import annotations

import threading

import anyio
import pytest

from answerback import ApiError, CallState, Handlers, MemoryStore, Runtime
from answerback.testing import Script, call, calls, rule, say
from integration.rig import PATIENCE, answered_by, answering, live_of, rows, until_row, until_state
from wire_player import Fault, PlayedSession
from wire_player import call as called

AGENT = {"model": "scripted"}


async def test_a_cancelled_turn_is_a_result_and_its_handler_is_cancelled_once() -> None:
    handlers = Handlers()
    entered = anyio.Event()
    cancels: list[str] = []
    cancelled = anyio.get_cancelled_exc_class()

    @handlers.tool
    async def slow() -> str:
        """Note each cancellation, and clean up for a while."""
        entered.set()
        try:
            await anyio.sleep_forever()
        except cancelled:
            cancels.append("once")
            for _ in range(20):
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
            raise
        return "never"

    script = Script(rule("go", call("slow"), say("Too late.")), rule(say("Next.")))
    store = MemoryStore()
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script, store=store) as (harness, runtime):
            session = await runtime.open("k", agent=AGENT, input="go")
            await entered.wait()
            await session.cancel()
            turn = await session.wait()
            following = await session.run("more")
            await _until_closed(runtime, store, session.id)
            results = [entry for entry in harness.log if entry.kind == "tool_result"]
    assert (turn.status, turn.output_text) == ("cancelled", "")
    assert following.output_text == "Next."
    assert cancels == ["once"]
    assert results == []
    (record,) = (await rows(store)).values()
    assert record.state is CallState.OBSOLETE_UNKNOWN


async def _until_closed(runtime: Runtime, store: MemoryStore, session_id: str) -> None:
    """Wait until no call of the session is open any more."""
    live = live_of(runtime, session_id)
    while live.journal.entries:
        await live.changed.wait()
    await store.flush()


async def test_a_value_returned_within_the_grace_is_kept_as_obsolete_and_not_sent() -> None:
    handlers = Handlers()
    entered = anyio.Event()
    cancelled = anyio.get_cancelled_exc_class()

    @handlers.tool
    async def careful() -> str:
        """End in order."""
        entered.set()
        try:
            await anyio.sleep_forever()
        except cancelled:
            return "rolled back"
        return "never"

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "careful")])
    async with answering(session, handlers, store=store) as stage:
        await entered.wait()
        await stage.ref.cancel()
        record = await until_state(stage, "c_a", CallState.OBSOLETE)
    assert b"rolled back" in (record.outcome or b"")
    assert stage.player.results() == []


async def test_a_handler_that_swallows_the_cancel_is_abandoned_and_its_value_is_late() -> None:
    handlers = Handlers()
    entered, release = anyio.Event(), anyio.Event()
    cancelled = anyio.get_cancelled_exc_class()

    @handlers.tool
    async def deaf() -> str:
        """Go on whatever happens."""
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except cancelled:
                continue
        return "did it anyway"

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "deaf")])
    async with answering(session, handlers, store=store, cancel_grace=0.05) as stage:
        await entered.wait()
        await stage.ref.cancel()
        record = await until_state(stage, "c_a", CallState.OBSOLETE_UNKNOWN)
        release.set()
        assert stage.player.results() == []
    async with store:
        assert [late.kind for late in await store.late(record.key)] == ["ok"]


async def test_a_blocking_thread_does_not_hold_up_a_cancel() -> None:
    handlers = Handlers()
    entered, release = threading.Event(), threading.Event()

    @handlers.tool
    def blocking() -> str:
        """Block until told."""
        entered.set()
        release.wait(5)
        return "late"

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "blocking")])
    async with answering(session, handlers, store=store, cancel_grace=0.05) as stage:
        await until_row(stage, "c_a", lambda record: record.state is CallState.STARTED)
        assert await anyio.to_thread.run_sync(entered.wait, 5)
        await stage.ref.cancel()
        record = await until_state(stage, "c_a", CallState.OBSOLETE_UNKNOWN)
        release.set()
    assert record.reason
    assert stage.player.results() == []


async def test_calls_that_waited_for_their_turn_when_it_was_cancelled_never_start() -> None:
    handlers = Handlers()
    entered = anyio.Event()
    ran: list[int] = []

    @handlers.tool(max_concurrency=1)
    async def one_by_one(number: int) -> int:
        """Wait for ever."""
        ran.append(number)
        entered.set()
        await anyio.sleep_forever()
        return number

    script = Script(rule(calls(*(call("one_by_one", number=number) for number in range(4))), say("no")))
    store = MemoryStore()
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script, store=store) as (_, runtime):
            session = await runtime.open("k", agent=AGENT, input="go")
            await entered.wait()
            await session.cancel()
            assert (await session.wait()).status == "cancelled"
            await _until_closed(runtime, store, session.id)
    assert len(ran) == 1
    states = sorted(record.state.value for record in (await rows(store)).values())
    assert states == ["obsolete", "obsolete", "obsolete", "obsolete_unknown"]


async def test_a_cancel_that_is_refused_says_so() -> None:
    session = PlayedSession(pending=[called("c_a", "f")], faults={"cancel": [Fault(status=400)]})
    async with answering(session, Handlers(), unhandled="hold") as stage:
        with pytest.raises(ApiError) as refused:
            await stage.ref.cancel()
    assert refused.value.status == 400


async def test_a_cancel_without_a_clear_answer_is_repeated_under_one_key() -> None:
    session = PlayedSession(pending=[called("c_a", "f")], faults={"cancel": [Fault(status=503), Fault(close=True)]})
    async with answering(session, Handlers(), unhandled="hold") as stage:
        await stage.ref.cancel()
        await stage.ref.wait()
    assert len({post.key for post in stage.player.posts}) == 1
    assert [post.status for post in stage.player.posts] == [503, 0, 202]


async def test_a_result_already_on_its_way_to_a_cancelled_turn_ends_as_obsolete() -> None:
    handlers = Handlers()

    @handlers.tool
    async def quick() -> str:
        """Answer at once."""
        return "ok"

    session = PlayedSession(
        pending=[called("c_a", "quick")], faults={"c_a": [Fault(status=409), Fault(status=409)]}, settle=False
    )
    async with answering(session, handlers) as stage:
        await stage.posted("c_a", 1)
        session.finish("cancelled")
        record = await until_state(stage, "c_a", CallState.OBSOLETE)
    assert record.outcome is not None
    assert {result.raw for result in stage.player.results()} == {record.outcome}
