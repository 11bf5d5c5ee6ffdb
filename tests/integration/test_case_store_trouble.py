"""Cases A19 and A20: while the store cannot commit, nothing is lost, nothing is failed and nothing leaves early."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from answerback import CallState, Handlers, SQLiteStore
from answerback.store.memory import MemoryStore
from integration.rig import answering, rows, until_state
from wire_player import PlayedSession, call

HOLDER = Path(__file__).with_name("lock_holder.py")


class Degraded(logging.Handler):
    """Waits for the store to say that it is degraded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "degraded" in record.getMessage():
            self.said.set()


@pytest.fixture
def degraded() -> Generator[Degraded]:
    handler = Degraded()
    log = logging.getLogger("answerback.store")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """Let another process hold the file's write lock for the length of the block."""
    command = [sys.executable, str(HOLDER), str(path)]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 100) == b"locked"
        yield
        await process.stdin.aclose()
        assert await process.wait() == 0


async def test_while_another_process_holds_the_write_lock_calls_wait_and_none_fails(
    tmp_path: Path, degraded: Degraded
) -> None:
    handlers = Handlers()
    ran: list[int] = []
    all_read = anyio.Event()

    @handlers.tool
    async def write(number: int) -> int:
        """Have an effect."""
        ran.append(number)
        return number

    @handlers.tool(effects="read")
    async def look(number: int) -> int:
        """Have none."""
        ran.append(number)
        if sum(one >= 10 for one in ran) == 10:
            all_read.set()
        return number

    path = tmp_path / "calls.db"
    store = SQLiteStore(path, busy_timeout=0.1)
    session = PlayedSession()
    calls = [call(f"c_{number}", "write" if number < 10 else "look", {"number": number}) for number in range(20)]
    async with answering(session, handlers, store=store) as stage:
        await stage.player.until(lambda: bool(session.followers))
        async with locked(path):
            session.require(*calls)
            session.publish(session.snapshot_event())
            await degraded.said.wait()
            # What only reads may run without its row; what has effects waits for it. Nothing is sent.
            await all_read.wait()
            health = stage.runtime.status().store
            assert sorted(ran) == list(range(10, 20))
            assert stage.player.results() == []
        accepted = await stage.answered(*(f"c_{number}" for number in range(20)))
        await stage.ref.wait()
        assert stage.runtime.status().store.degraded is None
    assert health.degraded is not None
    assert 0 < health.queued < 200
    assert sorted(ran) == list(range(20))
    assert all(accepted[f"c_{number}"].output == str(number) for number in range(20))
    assert len(stage.player.results()) == 20


async def test_a_result_that_finds_the_disk_full_is_kept_saved_later_and_sent_once(
    tmp_path: Path, degraded: Degraded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "answerback")
    handlers = Handlers()
    entered, full = anyio.Event(), anyio.Event()
    ran: list[str] = []

    @handlers.tool
    async def export() -> str:
        """Return a long text once the disk is full."""
        ran.append("export")
        entered.set()
        await full.wait()
        return "row;" * 50_000

    store = SQLiteStore(tmp_path / "calls.db")
    async with answering(PlayedSession(pending=[call("c_a", "export")]), handlers, store=store) as stage:
        # The handler was entered, so its STARTED row is committed.
        await entered.wait()
        await store.limit_growth(0)
        full.set()
        await degraded.said.wait()
        assert stage.runtime.status().store.degraded is not None
        assert stage.player.results() == []
        # Reads go on.
        assert [record.state for record in await store.calls()] == [CallState.STARTED]
        await store.limit_growth(None)
        result = (await stage.answered("c_a"))["c_a"]
        await stage.ref.wait()
        assert stage.runtime.status().store.degraded is None
    assert ran == ["export"]
    assert (result.success, result.output) == (True, "row;" * 50_000)
    assert len(stage.player.results()) == 1
    assert "row;" not in caplog.text


async def test_no_handler_with_effects_starts_while_the_store_is_degraded(degraded: Degraded) -> None:
    handlers = Handlers()
    ran: list[str] = []

    @handlers.tool
    async def pay() -> str:
        """Have an effect."""
        ran.append("pay")
        return "paid"

    store = MemoryStore()
    session = PlayedSession()
    async with answering(session, handlers, store=store) as stage:
        await stage.player.until(lambda: bool(session.followers))
        store.fail_commits("full")
        session.require(call("c_a", "pay"))
        session.publish(session.snapshot_event())
        await degraded.said.wait()
        assert ran == []
        store.fail_commits(None)
        await stage.answered("c_a")
        await until_state(stage, "c_a", CallState.ACKED, CallState.SUBMITTED)
    assert ran == ["pay"]


@pytest.mark.parametrize("failure", ["io", "io_landed"])
async def test_one_error_of_the_disk_changes_no_outcome(failure: str) -> None:
    handlers = Handlers()
    ran: list[str] = []
    store = MemoryStore()

    @handlers.tool
    async def pay() -> str:
        """Have an effect, and let the next commit meet the error."""
        ran.append("pay")
        store.fail_commits("io" if failure == "io" else "io_landed")
        return "paid"

    async with answering(PlayedSession(pending=[call("c_a", "pay")]), handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert ran == ["pay"]
    assert result.output == "paid"
    assert len(stage.player.results()) == 1
    assert (await rows(store))["c_a"].outcome == result.raw
