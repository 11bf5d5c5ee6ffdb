"""Case A11: a call past its time is answered once, in time, and what comes later changes nothing."""

from __future__ import annotations

import threading

import anyio

from answerback import Handlers, Happened, NotHappened, Unknown
from answerback.store.memory import MemoryStore
from integration.rig import answering, rows
from wire_player import PlayedSession, call


async def test_an_async_handler_past_its_time_is_cancelled_and_answered_once() -> None:
    handlers = Handlers()
    ends: list[str] = []
    cancelled = anyio.get_cancelled_exc_class()

    @handlers.tool(timeout=0.1)
    async def slow() -> str:
        """Never end by itself."""
        try:
            await anyio.sleep_forever()
        except cancelled:
            ends.append("cancelled")
            raise
        return "late"

    async with answering(PlayedSession(pending=[call("c_a", "slow")]), handlers) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
    assert ends == ["cancelled"]
    assert answer.success is False
    assert "slow" in (answer.error or "")
    assert "0.1 seconds" in (answer.error or "")
    assert len(stage.player.results()) == 1


async def test_a_thread_past_its_time_is_answered_as_unknown_and_its_late_value_is_kept_not_sent() -> None:
    handlers = Handlers()
    release = threading.Event()

    @handlers.tool(timeout=0.1)
    def slow() -> str:
        """Block until told."""
        release.wait(5)
        return "late value"

    store = MemoryStore()
    async with answering(PlayedSession(pending=[call("c_a", "slow")], settle=False), handlers, store=store) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
        release.set()
    assert answer.success is False
    assert "unknown" in (answer.error or "")
    assert len(stage.player.results()) == 1
    assert b"late value" not in stage.player.posts[0].raw
    (record,) = (await rows(store)).values()
    assert record.outcome_kind == "unknown"
    async with store:
        (late,) = await store.late(record.key)
    assert b"late value" in late.element


async def test_a_read_past_its_time_may_be_asked_again_by_the_model() -> None:
    handlers = Handlers()

    @handlers.tool(effects="read", timeout=0.1)
    async def look() -> str:
        """Never end."""
        await anyio.sleep_forever()
        return ""

    async with answering(PlayedSession(pending=[call("c_a", "look")]), handlers) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
    assert "retry" in (answer.error or "")


async def test_a_call_that_only_queued_past_its_time_has_not_started() -> None:
    handlers = Handlers()
    gate = anyio.Event()
    entered: list[int] = []

    @handlers.tool(max_concurrency=1, timeout=0.3)
    async def narrow(number: int) -> int:
        """Let one in at a time."""
        entered.append(number)
        with anyio.CancelScope(shield=True):
            await gate.wait()
        return number

    session = PlayedSession(pending=[call("c_0", "narrow", {"number": 0}), call("c_1", "narrow", {"number": 1})])
    store = MemoryStore()
    async with answering(session, handlers, store=store, cancel_grace=0.05) as stage:
        accepted = await stage.answered("c_0", "c_1")
        gate.set()
    assert len(entered) == 1
    queued = next(name for name in ("c_0", "c_1") if name != f"c_{entered[0]}")
    assert "not started" in (accepted[queued].error or "")
    assert (await rows(store))[queued].outcome_kind == "not_started"


async def test_a_verify_hook_is_asked_about_a_call_that_ran_out_of_time() -> None:
    handlers = Handlers()
    answers: dict[str, Happened[str] | NotHappened | Unknown] = {
        "paid": Happened("receipt 5"),
        "lost": NotHappened(),
        "dark": Unknown(),
    }
    asked: list[str] = []

    @handlers.tool(timeout=0.1, settle=0.0)
    async def pay(name: str) -> str:
        """Never end."""
        await anyio.sleep_forever()
        return name

    @pay.verify
    async def _(name: str) -> Happened[str] | NotHappened | Unknown:
        asked.append(name)
        return answers[name]

    session = PlayedSession(pending=[call(f"c_{name}", "pay", {"name": name}) for name in answers])
    async with answering(session, handlers, hold_deadline=0.2) as stage:
        accepted = await stage.answered("c_paid", "c_lost", "c_dark")
    assert set(asked) == set(answers)
    assert accepted["c_paid"].output == "receipt 5"
    assert "did not take effect" in (accepted["c_lost"].error or "")
    assert "unknown" in (accepted["c_dark"].error or "")


async def test_a_value_that_comes_within_the_grace_of_the_cancel_is_not_sent() -> None:
    handlers = Handlers()
    cancelled = anyio.get_cancelled_exc_class()

    @handlers.tool(timeout=0.1)
    async def stubborn() -> str:
        """Return a value instead of giving way."""
        try:
            await anyio.sleep_forever()
        except cancelled:
            return "too late"
        return ""

    store = MemoryStore()
    async with answering(PlayedSession(pending=[call("c_a", "stubborn")]), handlers, store=store) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
    assert answer.success is False
    record = (await rows(store))["c_a"]
    async with store:
        assert [late.kind for late in await store.late(record.key)] == ["ok"]
