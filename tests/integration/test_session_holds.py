"""Calls that wait for somebody: names nobody handles, outcomes nobody knows, and the person who decides."""

from __future__ import annotations

import logging

import anyio
import pytest

from answerback import (
    CallState,
    DecisionError,
    Failed,
    Handlers,
    Happened,
    MemoryStore,
    NotHappened,
    SQLiteStore,
    Unknown,
    UnknownCallError,
)
from integration.rig import PATIENCE, answering, rows, running, until_row, until_state
from wire_player import PlayedSession, call, play


def paying(*, on_interrupted: str | None = "hold") -> tuple[Handlers, list[int], anyio.Event]:
    """Return a tool that hangs the first time, what it paid, and the event that says it was entered."""
    handlers = Handlers()
    paid: list[int] = []
    entered = anyio.Event()

    @handlers.tool(on_interrupted="hold" if on_interrupted == "hold" else None, settle=0.0)
    async def pay(cents: int) -> str:
        """Pay, and hang the first time."""
        paid.append(cents)
        if len(paid) == 1:
            entered.set()
            await anyio.sleep_forever()
        return f"paid {cents}"

    return handlers, paid, entered


async def interrupted(session: PlayedSession, handlers: Handlers, store: MemoryStore, entered: anyio.Event) -> None:
    """Run a first life that ends while the handler runs."""
    async with answering(session, handlers, store=store, drain_timeout=0.0):
        await entered.wait()
    (record,) = (await rows(store)).values()
    assert record.state is CallState.INDETERMINATE


async def test_a_name_nobody_declared_is_answered_and_one_the_session_declares_is_held() -> None:
    session = PlayedSession(pending=[call("c_theirs", "theirs"), call("c_nobodys", "nobodys")], tools=["theirs"])
    handlers = Handlers()
    async with answering(session, handlers) as stage:
        accepted = await stage.answered("c_nobodys")
        held = await until_row(stage, "c_theirs", lambda record: record.hold_until is not None)
        assert accepted.keys() == {"c_nobodys"}
        assert held.state is CallState.REQUESTED
        assert [action["call_id"] for action in session.pending] == ["c_theirs"]


async def test_a_held_name_is_answered_when_its_deadline_passes() -> None:
    session = PlayedSession(pending=[call("c_theirs", "theirs")], tools=["theirs"])
    async with answering(session, Handlers(), hold_deadline=0.1) as stage:
        answer = (await stage.answered("c_theirs"))["c_theirs"]
    assert answer.success is False
    assert "theirs" in (answer.error or "")


async def test_everything_unhandled_is_held_where_the_application_says_so() -> None:
    session = PlayedSession(pending=[call("c_nobodys", "nobodys")], tools=[])
    async with answering(session, Handlers(), unhandled="hold") as stage:
        await until_row(stage, "c_nobodys", lambda record: record.hold_until is not None)
        assert stage.player.posts == []


async def test_a_held_name_is_run_by_the_process_that_has_its_handler() -> None:
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "later")], tools=["later"])
    async with answering(session, Handlers(), store=store) as stage:
        await until_row(stage, "c_a", lambda record: record.hold_until is not None)
    handlers = Handlers()

    @handlers.tool
    async def later() -> str:
        """Come with the next deployment."""
        return "here now"

    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "here now"


async def test_another_client_may_answer_a_held_name() -> None:
    session = PlayedSession(pending=[call("c_a", "theirs")], tools=["theirs"])
    async with answering(session, Handlers()) as stage:
        await until_row(stage, "c_a", lambda record: record.hold_until is not None)
        session.apply(
            [{"type": "x.tool_result", "turn_id": "turn_1", "call_id": "c_a", "success": True, "output": "theirs"}]
        )
        record = await until_state(stage, "c_a", CallState.OBSOLETE)
        await stage.ref.wait()
    assert record.attempt == 0
    assert stage.player.posts == []


async def test_a_person_decides_a_held_name_in_its_handlers_place() -> None:
    session = PlayedSession(pending=[call("c_a", "theirs")], tools=["theirs"])
    async with answering(session, Handlers()) as stage:
        await until_row(stage, "c_a", lambda record: record.hold_until is not None)
        await stage.runtime.decide("c_a", Happened({"done": "by hand"}))
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == '{"done":"by hand"}'


VERDICTS = {
    "happened": (Happened("receipt 8"), True, "receipt 8"),
    "failed": (Failed("The card was refused."), False, "The card was refused."),
    "unknown": (Unknown(), False, "unknown"),
    "not happened": (NotHappened(), True, "paid 5"),
}


@pytest.mark.parametrize(("verdict", "success", "text"), VERDICTS.values(), ids=VERDICTS.keys())
async def test_an_interrupted_call_is_held_for_a_person_whose_word_is_sent(
    verdict: Happened[str] | Failed | Unknown | NotHappened, success: bool, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    handlers, paid, entered = paying()
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay", {"cents": 5})])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store) as stage:
        record = await until_row(stage, "c_a", lambda row: row.hold_until is not None)
        assert stage.player.results() == []
        (status,) = stage.runtime.status().sessions
        assert status.indeterminate == 1
        await stage.runtime.decide(record.public_id, verdict)
        result = (await stage.answered("c_a"))["c_a"]
        with pytest.raises(DecisionError):
            await stage.runtime.decide(record.public_id, Happened("something else"))
    assert result.success is success
    assert text in str(result.output if success else result.error)
    assert len(paid) == (2 if isinstance(verdict, NotHappened) else 1)
    assert record.public_id[:12] in caplog.text


async def test_a_held_call_without_a_person_is_answered_as_unknown_at_its_deadline() -> None:
    handlers, paid, entered = paying()
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay", {"cents": 5})])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store, hold_deadline=0.1) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.success is False
    assert "unknown" in (result.error or "")
    assert paid == [5]


async def test_an_interrupted_call_is_told_to_the_model_at_once_by_default() -> None:
    handlers, paid, entered = paying(on_interrupted=None)
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay", {"cents": 5})])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert "unknown" in (result.error or "")
    assert paid == [5]


async def test_the_runtimes_default_holds_too() -> None:
    handlers, _, entered = paying(on_interrupted=None)
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay", {"cents": 5})])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store, on_interrupted="hold") as stage:
        await until_row(stage, "c_a", lambda row: row.hold_until is not None)
        assert stage.player.posts == []


async def test_decisions_name_one_call() -> None:
    session = PlayedSession(pending=[call("c_a", "theirs"), call("c_b", "theirs")], tools=["theirs"])
    session.require(call("c_a", "theirs", turn_id="turn_2"))
    async with answering(session, Handlers()) as stage:
        await until_row(stage, "c_b", lambda record: record.hold_until is not None)
        with pytest.raises(UnknownCallError):
            await stage.runtime.decide("c_nowhere", Happened("x"))
        with pytest.raises(UnknownCallError) as several:
            await stage.runtime.decide("c_a", Happened("x"))
        assert str(several.value).count(",") >= 1
        assert stage.player.posts == []


async def test_a_decision_about_a_session_that_is_not_followed_is_stored_and_sent_when_it_is() -> None:
    handlers, paid, entered = paying()
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay", {"cents": 5})])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, handlers, store=store, drain_timeout=0.0) as stage:
                ref = await stage.runtime.attach("sess_1")
                await entered.wait()
                await ref.detach()
            async with running(player, handlers, store=store) as stage:
                (record,) = await stage.runtime.calls(states=[CallState.INDETERMINATE])
                await stage.runtime.decide(record.public_id[:16], Happened("by hand"))
                assert player.posts == []
                await stage.runtime.attach("sess_1")
                result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "by hand"
    assert paid == [5]


async def test_calls_another_client_may_have_started_are_not_run_where_verify_is_asked_for() -> None:
    handlers = Handlers()
    ran: list[str] = []
    asked: list[str] = []

    @handlers.tool
    async def pay() -> str:
        """Have an effect."""
        ran.append("pay")
        return "paid"

    @handlers.tool(settle=0.0)
    async def send() -> str:
        """Have an effect that can be looked up."""
        ran.append("send")
        return "sent"

    @send.verify
    async def _() -> NotHappened:
        asked.append("send")
        return NotHappened()

    @handlers.tool(effects="read")
    async def look() -> str:
        """Have none."""
        ran.append("look")
        return "seen"

    names = ["pay", "send", "look"]
    session = PlayedSession(pending=[call(f"c_{name}", name) for name in names])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, handlers) as stage:
            await stage.runtime.attach("sess_1", pending="verify")
            accepted = await stage.answered(*(f"c_{name}" for name in names))
            assert sorted(ran) == ["look", "send"]
            # What is asked for later is ours alone.
            session.require(call("c_new", "pay", turn_id="turn_2"))
            session.publish(session.snapshot_event())
            accepted |= await stage.answered("c_new")
    assert "unknown" in (accepted["c_pay"].error or "")
    assert (accepted["c_send"].output, accepted["c_look"].output, accepted["c_new"].output) == ("sent", "seen", "paid")
    assert asked == ["send"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_with_a_restored_store_a_pending_call_without_a_row_may_have_been_started(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    handlers = Handlers()
    ran: list[str] = []

    @handlers.tool
    async def pay() -> str:
        """Have an effect."""
        ran.append("pay")
        return "paid"

    path = tmp_path_factory.mktemp("restored") / "calls.db"
    store = MemoryStore(complete=False) if kind == "memory" else SQLiteStore(path, restored=True)
    async with answering(PlayedSession(pending=[call("c_a", "pay")]), handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert "unknown" in (result.error or "")
    assert ran == []


async def test_a_verify_hook_that_fails_or_hangs_counts_as_not_knowing_and_is_asked_again() -> None:
    handlers = Handlers()
    asked: list[int] = []
    entered = anyio.Event()

    @handlers.tool(settle=0.0)
    async def pay() -> str:
        """Hang."""
        entered.set()
        await anyio.sleep_forever()
        return ""

    @pay.verify
    async def _() -> Happened[str]:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError("the bank is closed")
        return Happened("found it")

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay")])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "found it"
    assert len(asked) == 2


async def test_a_verify_hook_is_not_asked_before_its_tool_has_settled() -> None:
    handlers = Handlers()
    entered = anyio.Event()
    asked: list[int] = []

    @handlers.tool(settle=3600.0)
    async def pay() -> str:
        """Hang."""
        entered.set()
        await anyio.sleep_forever()
        return ""

    @pay.verify
    async def _() -> Happened[str]:
        asked.append(1)
        return Happened("too early")

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "pay")])
    await interrupted(session, handlers, store, entered)
    async with answering(session, handlers, store=store) as stage:
        record = await until_row(stage, "c_a", lambda row: row.hold_until is not None)
        assert asked == []
        # A person may know earlier than the hook may be asked.
        await stage.runtime.decide(record.public_id, Happened("by hand"))
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "by hand"
    assert asked == []
