"""Case A12: a handler finds the application's context variables, its own call, and its ids in the log."""

from __future__ import annotations

import contextvars
import logging

import anyio
import anyio.to_thread
import pytest

from answerback import CallLogFilter, Handlers, ToolContext
from answerback.store.memory import MemoryStore
from integration.rig import answering
from wire_player import PlayedSession, call

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def describing() -> Handlers:
    """Return a sync and an async tool that say where they run."""
    handlers = Handlers()

    @handlers.tool(effects="read")
    def in_a_thread(number: int) -> str:
        """Say where this runs."""
        return f"{tenant.get()}/{ToolContext.current().call_id}/{number}"

    @handlers.tool(effects="read")
    async def on_the_loop(number: int) -> str:
        """Say where this runs."""
        # Another thread, started by the handler: the context goes along.
        return await anyio.to_thread.run_sync(lambda: f"{tenant.get()}/{ToolContext.current().call_id}/{number}")

    return handlers


async def test_parallel_handlers_see_the_applications_variables_and_their_own_call() -> None:
    pending = [call(f"c_{number}", "in_a_thread", {"number": number}) for number in range(6)]
    pending += [call(f"c_{number}", "on_the_loop", {"number": number}) for number in range(6, 12)]
    token = tenant.set("globex")
    try:
        async with answering(PlayedSession(pending=pending), describing()) as stage:
            accepted = await stage.answered(*(f"c_{number}" for number in range(12)))
    finally:
        tenant.reset(token)
    assert {name: result.output for name, result in accepted.items()} == {
        f"c_{number}": f"globex/c_{number}/{number}" for number in range(12)
    }


async def test_a_handlers_change_of_a_variable_stays_in_its_call() -> None:
    handlers = Handlers()

    @handlers.tool
    async def take(name: str) -> str:
        """Set the variable, and tell what it was."""
        before = tenant.get()
        tenant.set(name)
        return before

    session = PlayedSession(pending=[call("c_a", "take", {"name": "a"}), call("c_b", "take", {"name": "b"})])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered("c_a", "c_b")
        session.require(call("c_c", "take", {"name": "c"}, turn_id="turn_2"))
        session.publish(session.snapshot_event())
        accepted |= await stage.answered("c_c")
    assert [accepted[name].output for name in ("c_a", "c_b", "c_c")] == ["nobody"] * 3


async def test_the_context_tells_everything_about_the_call_and_keeps_its_key_over_attempts() -> None:
    handlers = Handlers()
    seen: list[ToolContext] = []

    @handlers.tool(effects="idempotent", timeout=30)
    async def look(context: ToolContext) -> str:
        """Remember the context."""
        seen.append(context)
        return "ok"

    session = PlayedSession(pending=[call("c_a", "look", turn_id="turn_9")])
    async with answering(session, handlers, deps={"bank": 1}) as stage:
        await stage.answered("c_a")
    (context,) = seen
    assert (context.session_id, context.turn_id, context.call_id) == ("sess_1", "turn_9", "c_a")
    assert (context.name, context.attempt, context.deps) == ("look", 1, {"bank": 1})
    assert len(context.idempotency_key) == 64
    assert context.deadline is not None


async def test_a_call_resumed_after_a_restart_has_its_context_and_the_new_applications_variables() -> None:
    entered = anyio.Event()
    seen: list[tuple[str, str, int, str]] = []
    first_life = [True]
    handlers = Handlers()

    @handlers.tool(effects="idempotent")
    async def resume(context: ToolContext) -> str:
        """Hang in the first life, end in the second."""
        seen.append((tenant.get(), context.call_id, context.attempt, context.idempotency_key))
        if first_life:
            entered.set()
            await anyio.sleep_forever()
        return "done"

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "resume")])
    token = tenant.set("old")
    async with answering(session, handlers, store=store, drain_timeout=0.0):
        await entered.wait()
    first_life.clear()
    tenant.set("new")
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    tenant.reset(token)
    assert result.output == "done"
    (old, new) = seen
    assert (old[:3], new[:3]) == (("old", "c_a", 1), ("new", "c_a", 2))
    assert old[3] == new[3]


async def test_log_records_of_a_handler_carry_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()
    log = logging.getLogger("an.application")
    caplog.handler.addFilter(CallLogFilter())
    caplog.set_level(logging.INFO)

    @handlers.tool
    def in_a_thread() -> None:
        """Write to the log."""
        log.info("from a thread")

    @handlers.tool
    async def on_the_loop() -> None:
        """Write to the log."""
        log.info("from the loop")

    session = PlayedSession(pending=[call("c_a", "in_a_thread"), call("c_b", "on_the_loop")])
    async with answering(session, handlers) as stage:
        await stage.answered("c_a", "c_b")
        log.info("from the application")
    ids = {
        record.message: [getattr(record, name) for name in ("session_id", "turn_id", "call_id", "tool")]
        for record in caplog.records
        if record.name == "an.application"
    }
    assert ids == {
        "from a thread": ["sess_1", "turn_1", "c_a", "in_a_thread"],
        "from the loop": ["sess_1", "turn_1", "c_b", "on_the_loop"],
        "from the application": ["", "", "", ""],
    }
