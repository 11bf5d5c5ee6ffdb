"""`serve`: until when it runs, how it ends, and what a person may do to a session meanwhile."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from openai import AsyncOpenAI

from answerback import (
    CallState,
    DecisionError,
    Discover,
    DrainReport,
    Handlers,
    Runtime,
    SessionError,
    SQLiteStore,
    StoreError,
    UnknownCallError,
)
from answerback.errors import RuntimeStateError
from answerback.store.memory import MemoryStore
from answerback.testing import Harness, Script, call, calls, rule, run_harness, say
from integration.fleet import fleet, virtually
from integration.rig import PATIENCE

# --- until when -------------------------------------------------------------------------------------------------------


def test_serving_ends_with_its_trigger_after_the_running_calls(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store = MemoryStore()
        async with fleet(harness, store=store, drain_timeout=400) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="slow")
            stop = anyio.Event()
            reports: list[DrainReport] = []

            async def serve() -> None:
                reports.append(await ours.runtime.serve(shutdown_trigger=stop.wait))

            async with anyio.create_task_group() as group:
                group.start_soon(serve)
                await anyio.sleep(10)
                stop.set()
                await anyio.sleep(1)
                with pytest.raises(RuntimeStateError):
                    await session.send("ping")
                assert reports == []
            assert reports == [DrainReport()]
            assert ours.answers(session.id) == ["slow"]
            assert ours.streams() == 0

    virtually(anyio_backend, body)


def test_a_cancelled_serve_stops_in_order_before_it_goes(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness, drain_timeout=400) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="slow")
            began = anyio.current_time()
            with anyio.move_on_after(10) as scope:
                await ours.runtime.serve()
            assert scope.cancelled_caught
            assert 290 < anyio.current_time() - began < 310
            assert ours.answers(session.id) == ["slow"]

    virtually(anyio_backend, body)


def test_hurrying_ends_the_patience_and_the_cut_call_is_left_for_a_decision(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store = MemoryStore()
        async with fleet(harness, store=store, drain_timeout=400, cancel_grace=60.0) as ours:
            await ours.runtime.open("one", agent={"model": "m"}, input="slow")
            await anyio.sleep(10)
            began = anyio.current_time() + 10
            async with anyio.create_task_group() as group:
                group.start_soon(ours.runtime.drain)
                await anyio.sleep(10)
                ours.runtime.hurry()
            assert anyio.current_time() - began < 1.0
            assert ours.runtime._kernel.report == DrainReport(cut_short=1)
        async with store:
            (record,) = await store.calls()
        assert record.state is CallState.INDETERMINATE

    virtually(anyio_backend, body)


def test_a_handler_that_ignores_its_cancellation_does_not_hold_up_a_hurried_end(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        handlers = Handlers()

        @handlers.tool
        async def slow() -> str:
            """Pay no attention to anybody."""
            with anyio.CancelScope(shield=True):
                await anyio.sleep(300)
            return "slow"

        store = MemoryStore()
        began = 0.0
        async with Runtime(harness.client, handlers=handlers, store=store, cancel_grace=60.0) as runtime:
            await runtime.open("one", agent={"model": "m"}, input="slow")
            await anyio.sleep(10)
            began = anyio.current_time()
            runtime.hurry()
            report = await runtime.drain()
        assert anyio.current_time() - began < 3.0
        assert report == DrainReport(cut_short=1)

    virtually(anyio_backend, body)


def test_nothing_is_adopted_once_a_drain_began(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness, drain_timeout=400) as ours, anyio.create_task_group() as group:
            stop = anyio.Event()
            discover = Discover(metadata={"app": "acme"}, interval=5)
            group.start_soon(lambda: ours.runtime.serve(discover=discover, shutdown_trigger=stop.wait))
            await ours.runtime.open("one", agent={"model": "m"}, input="slow")
            await anyio.sleep(10)
            stop.set()
            await anyio.sleep(1)
            late = await ours.elsewhere("ping", {"app": "acme"}, "ping")
            await anyio.sleep(100)
            assert ours.ran == ["slow"]
            assert not ours.lives(late)

    virtually(anyio_backend, body)


def test_what_a_trigger_raises_arrives_bare_after_the_drain(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async def broken() -> None:
            await anyio.sleep(5)
            raise LookupError("trigger")

        async with fleet(harness) as ours:
            await ours.open("one")
            with pytest.raises(LookupError, match="trigger"):
                await ours.runtime.serve(shutdown_trigger=broken)
            assert ours.streams() == 0
            with pytest.raises(RuntimeStateError):
                await ours.runtime.serve()

    virtually(anyio_backend, body)


def test_a_failed_store_ends_serving_with_its_error(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store = MemoryStore()

        async def serve() -> None:
            async with fleet(harness, store=store) as ours:
                session_id = await ours.open("one")

                async def crash() -> None:
                    await anyio.sleep(5)
                    store.crash()
                    await ours.say(session_id, "ping")

                async with anyio.create_task_group() as group:
                    group.start_soon(crash)
                    with pytest.raises(StoreError):
                        await ours.runtime.serve()

        # Once more when the block is left, for whoever did not ask `serve`.
        with pytest.raises(StoreError):
            await serve()

    virtually(anyio_backend, body)


def test_draining_from_elsewhere_ends_serving(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:

            async def drain() -> None:
                await anyio.sleep(5)
                await ours.runtime.drain()

            group.start_soon(drain)
            assert (await ours.runtime.serve()).clean

    virtually(anyio_backend, body)


async def test_a_runtime_that_never_ran_serves_nothing() -> None:
    async with AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1") as client:
        runtime = Runtime(client, handlers=Handlers(), store=MemoryStore())
        with pytest.raises(RuntimeStateError):
            await runtime.serve()
        with pytest.raises(RuntimeStateError):
            runtime.hurry()


# --- pause, resume, resend --------------------------------------------------------------------------------------------


def test_a_paused_session_takes_no_calls_and_loses_none(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        async with fleet(harness, store=store, ran=ran) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="hello")
            await session.wait()
            await ours.runtime.pause(session.id)
            await anyio.sleep(1)
            assert ours.streams() == 0
            await session.send("ping", key="k")
            with pytest.raises(TimeoutError):
                await session.wait(timeout=1000)
            assert ran == []
        async with fleet(harness, store=store, ran=ran) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"})
            ours.runtime.wake(session.id)
            await anyio.sleep(1000)
            # Across a restart too, and opening it by its key is no resumption.
            assert ran == []
            assert [one.state for one in ours.runtime.status().sessions] == ["paused"]
            turns: list[str] = []
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    turns.append((await session.wait()).output_text)

                group.start_soon(wait)
                await anyio.sleep(10)
                assert (await ours.runtime.resume(session.id)).id == session.id
            assert (turns, ran) == (["pong it is"], ["ping"])
            # Resuming what is followed changes nothing.
            await ours.runtime.resume(session.id)
            assert (await session.run("ping")).ok

    virtually(anyio_backend, body)


# On asyncio only: trio may give the one place to either call, and the test is about the one that waits for it.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_pausing_lets_running_handlers_finish_and_sends_their_results_later(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness, max_concurrency=1) as ours:
            script = Script(rule("both", calls(call("slow"), call("ping")), say("both are done")))
            harness.control.set_script(script)
            session = await ours.runtime.open("one", agent={"model": "m"}, input="both")
            await anyio.sleep(10)
            assert ours.ran == ["slow"]
            await ours.runtime.pause(session.id)
            await anyio.sleep(1000)
            # The one that ran has its result stored and unsent; the one that waited for its place was not started.
            assert ours.ran == ["slow"]
            states = {record.name: record.state for record in await ours.runtime.calls()}
            assert states == {"slow": CallState.FINISHED, "ping": CallState.REQUESTED}
            assert ours.answers(session.id) == []
            await ours.runtime.resume(session.id)
            assert (await session.wait()).output_text == "both are done"
            assert (ours.ran, sorted(ours.answers(session.id))) == (["slow", "ping"], ["pong", "slow"])

    virtually(anyio_backend, body)


def test_a_session_that_was_set_aside_goes_on_when_it_is_resumed(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from answerback.actors.session_state import SessionState

    apply = SessionState.apply
    broken = [True]

    def crashing(state: SessionState, message: object) -> object:
        if broken:
            raise LookupError
        return apply(state, message)  # type: ignore[arg-type]

    async def body(harness: Harness) -> None:
        async with fleet(harness, restart_limit=1) as ours:
            session_id = await ours.elsewhere("ping", {}, "ping")
            monkeypatch.setattr(SessionState, "apply", crashing)
            session = await ours.runtime.attach(session_id)
            await anyio.sleep(1000)
            assert [one.state for one in ours.runtime.status().sessions] == ["quarantined"]
            broken.clear()
            await anyio.sleep(1000)
            assert ours.ran == []
            await ours.runtime.resume(session_id)
            await session.wait()
            assert ours.ran == ["ping"]
            broken.append(True)
            monkeypatch.undo()

    virtually(anyio_backend, body)
    broken.clear()


def test_only_what_this_store_follows_can_be_paused_or_resumed(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.open("one")
            await ours.runtime.detach(session_id)
            for name in (session_id, "sess_nobody"):
                with pytest.raises(SessionError):
                    await ours.runtime.pause(name)
                with pytest.raises(SessionError):
                    await ours.runtime.resume(name)

    virtually(anyio_backend, body)


def test_a_result_is_sent_again_as_it_was_without_running_anything(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="ping")
            (record,) = (await session.wait()).calls
            await anyio.sleep(100)
            again = await ours.runtime.resend(record.public_id[:10])
            assert again.key == record.key
            first, second = [entry for entry in harness.log if entry.kind == "tool_result"]
            assert (second.body, second.status, second.idempotency_key) == (first.body, 202, first.idempotency_key)
            assert ours.ran == ["ping"]
            assert (await session.wait()).ok
            with pytest.raises(UnknownCallError):
                await ours.runtime.resend("nobody")
            await session.send("slow")
            await anyio.sleep(10)
            (running,) = await ours.runtime.calls(states=[CallState.STARTED])
            with pytest.raises(DecisionError, match="no result"):
                await ours.runtime.resend(running.public_id)

    virtually(anyio_backend, body)


# --- what is left -----------------------------------------------------------------------------------------------------


def descriptors() -> set[str]:
    """Return the sockets and files this process has open."""
    found: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:
            continue
    return {one for one in found if "socket:" in one or one.endswith((".db", "-wal", "-shm", ".lock"))}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see open files")
async def test_after_the_end_no_task_thread_socket_or_file_is_left(tmp_path: Path) -> None:
    handlers = Handlers()

    @handlers.tool
    def ping() -> str:
        """Answer, in a thread."""
        return "pong"

    script = Script(rule("ping", call("ping"), say("done")))
    with anyio.fail_after(3 * PATIENCE):
        async with run_harness(script, transport="tcp") as harness:
            before = (len(anyio.get_running_tasks()), descriptors())
            async with AsyncOpenAI(api_key=harness.client.api_key, base_url=harness.base_url) as client:
                await serve_twenty(client, handlers, tmp_path / "calls.db")
            gc.collect()
            assert not [one for one in descriptors() if "calls.db" in one]
            assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("answerback")]
            while len(anyio.get_running_tasks()) > before[0] or len(descriptors()) > len(before[1]):
                # The harness's side of a connection ends when it notices.
                await anyio.sleep(0.01)


async def serve_twenty(client: AsyncOpenAI, handlers: Handlers, path: Path) -> None:
    """Answer twenty sessions, each with a stream of its own, and stop."""
    async with Runtime(client, handlers=handlers, store=SQLiteStore(path)) as runtime:
        for number in range(20):
            session = await runtime.open(f"k{number}", agent={"model": "m"}, input="ping")
            assert (await session.wait()).output_text == "done"
        assert runtime.status().streams == 20
        assert (await runtime.serve(shutdown_trigger=anyio.lowlevel.checkpoint)).clean
