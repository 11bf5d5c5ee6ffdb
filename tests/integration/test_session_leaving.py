"""Leaving the block: in order, whatever ends it, and with its own exception bare."""

from __future__ import annotations

import asyncio
import logging
import threading

import anyio
import pytest

from answerback import CallState, DrainReport, Handlers, MemoryStore, Runtime, StoreError
from answerback.errors import RuntimeStateError
from integration.rig import PATIENCE, answering, live_of, rows, running, until_row
from wire_player import Fault, PlayedSession, call, play


class Worker:
    """One tool that works until told, and what became of it."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.entered = anyio.Event()
        self.gate = anyio.Event()
        self.ran: list[str] = []
        self.handlers.tool(self.work)
        self.handlers.tool(effects="idempotent")(self.label)

    async def work(self) -> str:
        """Work until told."""
        self.ran.append("work")
        self.entered.set()
        await self.gate.wait()
        return "done"

    async def label(self) -> str:
        """Work until told; harmless to repeat."""
        self.ran.append("label")
        self.entered.set()
        await self.gate.wait()
        return "labelled"


async def test_draining_lets_running_handlers_finish_and_sends_what_they_return() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    reports: list[DrainReport] = []
    async with answering(session, worker.handlers, store=store) as stage:
        await worker.entered.wait()

        async def drain() -> None:
            reports.append(await stage.runtime.drain(5))

        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            await _stopping(stage.runtime)
            # What comes now is for the next process.
            session.require(call("c_b", "work"))
            session.publish(session.snapshot_event())
            worker.gate.set()
    assert reports == [DrainReport()]
    assert reports[0].clean
    assert [result.output for result in stage.player.results()] == ["done"]
    assert worker.ran == ["work"]
    stored = await rows(store)
    assert stored["c_a"].submit_status == "accepted"
    assert "c_b" not in stored or stored["c_b"].state is CallState.REQUESTED


async def _stopping(runtime: Runtime) -> None:
    """Return once the runtime takes no new calls."""
    kernel = runtime._kernel
    while kernel.runner.accepting:
        await anyio.lowlevel.checkpoint()


async def test_a_drain_that_runs_out_of_time_cuts_handlers_short_and_says_so() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work"), call("c_b", "label")])
    async with answering(session, worker.handlers, store=store) as stage:
        await until_row(stage, "c_a", lambda record: record.state is CallState.STARTED)
        await until_row(stage, "c_b", lambda record: record.state is CallState.STARTED)
        while stage.runtime.status().running < 2:
            await anyio.lowlevel.checkpoint()
        report = await stage.runtime.drain(0)
    assert (report.cut_short, report.unsent, report.clean) == (2, 0, False)
    stored = await rows(store)
    assert (stored["c_a"].state, stored["c_b"].state) == (CallState.INDETERMINATE, CallState.REQUESTED)
    assert stage.player.results() == []


async def test_results_the_server_does_not_take_are_reported_as_unsent_and_sent_by_the_next_process() -> None:
    worker, store = Worker(), MemoryStore()
    worker.gate.set()
    session = PlayedSession(pending=[call("c_a", "work")], faults={"c_a": [Fault(status=503)] * 100})
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, worker.handlers, store=store, submit_grace=0.05) as stage:
                await stage.runtime.attach("sess_1")
                await stage.posted("c_a", 1)
                report = await stage.runtime.drain(1)
            session.faults.clear()
            async with running(player, worker.handlers, store=store) as stage:
                await stage.answered("c_a")
            sent = player.results("c_a")
    assert (report.cut_short, report.unsent) == (0, 1)
    assert worker.ran == ["work"]
    assert len({(result.raw, result.key) for result in sent}) == 1


async def test_calls_that_only_waited_are_left_to_the_next_process_and_make_no_fuss() -> None:
    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "theirs")], tools=["theirs"])
    async with answering(session, Handlers(), store=store) as stage:
        await until_row(stage, "c_a", lambda record: record.hold_until is not None)
        report = await stage.runtime.drain(0)
    assert report.clean
    assert (await rows(store))["c_a"].state is CallState.REQUESTED


async def test_a_runtime_that_was_drained_takes_nothing_new_and_runs_only_once() -> None:
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player, player.client() as client:
            runtime = Runtime(client, handlers=Handlers(), store=MemoryStore())
            with pytest.raises(RuntimeStateError):
                await runtime.attach("sess_1")
            async with runtime:
                await runtime.drain()
                await runtime.drain()
                with pytest.raises(RuntimeStateError):
                    await runtime.attach("sess_1")
            with pytest.raises(RuntimeStateError):
                runtime.status()
            with pytest.raises(RuntimeStateError):
                async with runtime:
                    pytest.fail("it ran twice")


class PoliteError(Exception):
    """Raised by the body of a block."""


@pytest.mark.parametrize("error", [PoliteError, KeyboardInterrupt, SystemExit])
async def test_the_bodys_exception_arrives_bare(error: type[BaseException]) -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    raised: list[BaseException] = []
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            try:
                async with running(player, worker.handlers, store=store, drain_timeout=0.0) as stage:
                    await stage.runtime.attach("sess_1")
                    await worker.entered.wait()
                    raise error
            except BaseException as caught:
                raised.append(caught)
    assert [type(one) for one in raised] == [error]
    assert (await rows(store))["c_a"].state is CallState.INDETERMINATE


async def test_a_timeout_around_the_block_ends_it_in_order() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:

            async def serve() -> None:
                with anyio.fail_after(0.3):
                    async with running(player, worker.handlers, store=store, drain_timeout=0.05) as stage:
                        await stage.runtime.attach("sess_1")
                        await anyio.sleep_forever()

            with pytest.raises(TimeoutError):
                await serve()
    assert worker.ran == ["work"]
    assert (await rows(store))["c_a"].state is CallState.INDETERMINATE


async def test_a_cancelled_block_stores_what_a_handler_returns_on_its_way_out() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            with anyio.CancelScope() as scope:
                async with running(player, worker.handlers, store=store) as stage:
                    await stage.runtime.attach("sess_1")
                    await worker.entered.wait()
                    worker.gate.set()
                    scope.cancel()
                    await anyio.sleep_forever()
            (record,) = (await rows(store)).values()
    assert scope.cancelled_caught
    assert record.outcome_kind == "ok"
    assert [result.output for result in player.results()] == ["done"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncio_timeout_around_the_block_ends_it_in_order() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:

            async def serve() -> None:
                async with asyncio.timeout(0.3), running(player, worker.handlers, store=store) as stage:
                    await stage.runtime.attach("sess_1")
                    await anyio.sleep_forever()

            with pytest.raises(TimeoutError):
                await serve()
    assert (await rows(store))["c_a"].state is CallState.INDETERMINATE


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancels", [1, 2, 5])
async def test_native_cancels_end_the_block_in_order_however_many_come(cancels: int) -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:

            async def serve() -> None:
                async with running(player, worker.handlers, store=store, drain_timeout=30) as stage:
                    await stage.runtime.attach("sess_1")
                    await anyio.sleep_forever()

            task = asyncio.create_task(serve())
            await worker.entered.wait()
            for _ in range(cancels):
                task.cancel()
                await asyncio.wait([task], timeout=0.02)
            if cancels == 1:
                # One cancel leaves the block; its patience is for the handler, which ends now.
                worker.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
    (record,) = (await rows(store)).values()
    assert record.state in ({CallState.ACKED, CallState.SUBMITTED} if cancels == 1 else {CallState.INDETERMINATE})


async def test_a_block_may_be_entered_and_left_in_different_tasks() -> None:
    """As fixtures of test frameworks do, which run their two halves in tasks of their own."""
    worker = Worker()
    worker.gate.set()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, player.client() as client:
            runtime = Runtime(client, handlers=worker.handlers, store=MemoryStore())
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.__aenter__)
            await runtime.attach("sess_1")
            await player.until(lambda: bool(player.results(status=202)))
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.__aexit__, None, None, None)
    assert worker.ran == ["work"]


async def test_two_runtimes_after_each_other_use_one_store_and_one_client() -> None:
    worker, store = Worker(), MemoryStore()
    worker.gate.set()
    session = PlayedSession()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, player.client() as client:
            for number in range(3):
                async with Runtime(client, handlers=worker.handlers, store=store) as runtime:
                    ref = await runtime.attach("sess_1")
                    await player.until(lambda: session.live == 1)
                    session.require(call(f"c_{number}", "work", turn_id=f"turn_{number}"))
                    session.publish(session.snapshot_event())
                    await ref.wait()
                await player.until(lambda: session.live == 0)
            # The client is the application's: it still works.
            await client.beta.agents.sessions.retrieve("sess_1")
    assert [result.call_id for result in player.results()] == ["c_0", "c_1", "c_2"]


async def test_a_store_that_fails_for_good_ends_the_runtime_and_says_so() -> None:
    worker, store = Worker(), MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:

            async def serve() -> None:
                async with running(player, worker.handlers, store=store) as stage:
                    ref = await stage.runtime.attach("sess_1")
                    await worker.entered.wait()
                    store.crash()
                    worker.gate.set()
                    with pytest.raises(StoreError):
                        await ref.wait()

            with pytest.raises(StoreError):
                await serve()
    assert player.results() == []
    (record,) = (await rows(store)).values()
    assert record.state is CallState.STARTED


async def test_leaving_with_work_left_is_logged_once_and_without_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "answerback")
    handlers = Handlers()
    entered = anyio.Event()

    @handlers.tool
    async def pay(card: str) -> str:
        """Hang."""
        entered.set()
        await anyio.sleep_forever()
        return card

    session = PlayedSession(pending=[call("c_a", "pay", {"card": "4000-1234"})])
    async with answering(session, handlers, drain_timeout=0.0):
        await entered.wait()
    warnings = [
        record for record in caplog.records if record.name == "answerback.runtime" and record.levelname == "WARNING"
    ]
    assert len(warnings) == 1
    assert "4000-1234" not in caplog.text


async def test_leaving_does_not_wait_for_a_blocked_thread_longer_than_it_was_told() -> None:
    handlers = Handlers()
    release = threading.Event()

    @handlers.tool
    def blocking() -> str:
        """Block until told."""
        release.wait(8)
        return "late"

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "blocking")])
    try:
        with anyio.fail_after(5):
            async with answering(session, handlers, store=store, drain_timeout=0.0, cancel_grace=0.05) as stage:
                while not stage.runtime.status().running:
                    await anyio.lowlevel.checkpoint()
    finally:
        release.set()
    assert (await rows(store))["c_a"].state is CallState.INDETERMINATE


async def test_states_are_told_by_what_is_printed() -> None:
    worker = Worker()
    session = PlayedSession(pending=[call("c_a", "work")])
    async with answering(session, worker.handlers) as stage:
        await worker.entered.wait()
        kernel = stage.runtime._kernel
        described = [repr(stage.runtime), repr(stage.ref), repr(kernel.supervisor.actors["sess_1"])]
        described += [repr(live_of(stage.runtime)), repr(kernel), repr(kernel.runner)]
        worker.gate.set()
    assert "running" in described[0]
    assert "sess_1" in described[1]
    assert "requires_action, 1 running" in described[2]
