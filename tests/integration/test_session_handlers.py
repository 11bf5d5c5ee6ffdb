"""What handlers may do and have done to them, seen from the outside: retries, checkpoints, switches, the session's tools."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import pytest

from answerback import CallState, Handlers, MemoryStore, Retry, RetryLater, SQLiteStore, StoreError, Tool, ToolContext
from answerback.testing import Script, call, calls, rule, say
from integration.rig import PATIENCE, answered_by, answering, live_of, rows, until, until_row
from wire_player import PlayedSession
from wire_player import call as called


async def test_a_handler_that_asks_for_a_later_start_gets_it_and_counts_its_attempts() -> None:
    handlers = Handlers()
    attempts: list[tuple[int, str]] = []

    @handlers.tool(effects="once")
    async def patient(context: ToolContext) -> str:
        """Ask twice for a moment."""
        attempts.append((context.attempt, context.idempotency_key))
        if context.attempt < 3:
            raise RetryLater(after=0.01)
        return "now"

    store = MemoryStore()
    async with answering(PlayedSession(pending=[called("c_a", "patient")]), handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "now"
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert len({key for _, key in attempts}) == 1
    record = (await rows(store))["c_a"]
    assert record.attempt == 3
    async with store:
        states = [step.target for step in await store.transitions(record.key)]
    assert states.count("started") == 3


async def test_an_exception_is_retried_only_where_the_tool_says_so_and_as_often() -> None:
    handlers = Handlers()
    ran: list[str] = []

    @handlers.tool(effects="idempotent", retry=Retry(attempts=3, delay=0.01))
    async def flaky() -> str:
        """Fail twice."""
        ran.append("flaky")
        if ran.count("flaky") < 3:
            raise ConnectionError
        return "third time"

    @handlers.tool(effects="idempotent", retry=Retry(attempts=2, delay=0.01))
    async def hopeless() -> str:
        """Fail always."""
        ran.append("hopeless")
        raise ConnectionError

    @handlers.tool(effects="idempotent")
    async def single() -> str:
        """Fail once."""
        ran.append("single")
        raise ConnectionError

    names = ["flaky", "hopeless", "single"]
    session = PlayedSession(pending=[called(f"c_{name}", name) for name in names])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered(*(f"c_{name}" for name in names))
    assert {name: ran.count(name) for name in names} == {"flaky": 3, "hopeless": 2, "single": 1}
    assert [accepted[f"c_{name}"].success for name in names] == [True, False, False]


async def test_a_retry_that_waits_survives_a_restart() -> None:
    handlers = Handlers()
    attempts: list[int] = []

    @handlers.tool
    async def later(context: ToolContext) -> str:
        """Ask for a long pause the first time."""
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise RetryLater(after=0.3)
        return "after the restart"

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "later")])
    async with answering(session, handlers, store=store) as stage:
        await until_row(stage, "c_a", lambda record: record.next_at is not None)
        report = await stage.runtime.drain(0)
    assert report.clean
    assert (await rows(store))["c_a"].state is CallState.REQUESTED
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "after the restart"
    assert attempts == [1, 2]


async def test_checkpoints_of_an_attempt_are_there_for_the_next_also_from_a_thread() -> None:
    handlers = Handlers()
    entered = anyio.Event()
    found: list[dict[str, Any]] = []

    @handlers.tool(effects="idempotent")
    async def build(context: ToolContext) -> str:
        """Build in steps."""
        found.append(dict(context.checkpoints))
        if context.attempt == 1:
            await context.checkpoint("cursor", {"page": 3})
            await context.checkpoint("cursor", {"page": 4})
            entered.set()
            await anyio.sleep_forever()
        return str(context.checkpoints["cursor"]["page"])

    @handlers.tool(effects="idempotent")
    def build_in_a_thread(context: ToolContext) -> str:
        """Build in a thread."""
        anyio.from_thread.run(context.checkpoint, "part", [1, 2])
        return "ok"

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "build"), called("c_b", "build_in_a_thread")])
    async with answering(session, handlers, store=store, drain_timeout=0.0) as stage:
        await entered.wait()
        await stage.answered("c_b")
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == "4"
    assert found == [{}, {"cursor": {"page": 4}}]
    key = (await rows(store))["c_b"].key
    async with store:
        assert await store.checkpoints(key) == {"part": b"[1,2]"}


async def test_a_tool_that_is_switched_off_is_not_run_and_runs_again_when_it_is_on() -> None:
    handlers = Handlers()
    switch = {"on": False}
    ran: list[int] = []

    @handlers.tool(is_enabled=lambda: switch["on"])
    async def seasonal(number: int) -> str:
        """Work in season."""
        ran.append(number)
        return "in season"

    async def broken() -> bool:
        raise ConnectionError

    @handlers.tool(is_enabled=broken)
    async def unsure() -> str:
        """Be off when nobody can tell."""
        ran.append(0)
        return "never"

    session = PlayedSession(pending=[called("c_a", "seasonal", {"number": 1}), called("c_u", "unsure")])
    async with answering(session, handlers) as stage:
        accepted = await stage.answered("c_a", "c_u")
        switch["on"] = True
        session.require(called("c_b", "seasonal", {"number": 2}, turn_id="turn_2"))
        session.publish(session.snapshot_event())
        accepted |= await stage.answered("c_b")
    assert (accepted["c_a"].success, accepted["c_u"].success, accepted["c_b"].output) == (False, False, "in season")
    assert "not available" in (accepted["c_a"].error or "")
    assert ran == [2]


async def test_a_tool_from_a_schema_takes_the_raw_arguments() -> None:
    handlers = Handlers()
    seen: list[dict[str, Any]] = []

    async def handle(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        seen.append(arguments)
        return {"call": context.call_id, **arguments}

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    handlers.add(Tool(name="raw", parameters=schema, handler=handle, effects="read"))
    pending = [called("c_a", "raw", {"n": 1, "extra": [True]}), called("c_b", "raw", {"n": "one"})]
    async with answering(PlayedSession(pending=pending), handlers) as stage:
        accepted = await stage.answered("c_a", "c_b")
    assert accepted["c_a"].output == '{"call":"c_a","n":1,"extra":[true]}'
    assert accepted["c_b"].success is False
    assert len(seen) == 1


async def test_content_parts_are_sent_as_parts() -> None:
    handlers = Handlers()
    parts = [{"type": "input_text", "text": "a chart"}, {"type": "input_image", "image_url": "https://x.test/1.png"}]

    @handlers.tool
    async def chart() -> list[dict[str, str]]:
        """Draw a chart."""
        return parts

    async with answering(PlayedSession(pending=[called("c_a", "chart")]), handlers) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.output == parts


async def test_the_result_of_an_async_function_is_sent_though_nobody_waits_for_it() -> None:
    handlers = Handlers()
    gate, entered = anyio.Event(), anyio.Event()

    @handlers.tool(run_async=True)
    async def background() -> str:
        """Work in the background."""
        entered.set()
        await gate.wait()
        return "finished"

    script = Script(rule("go", call("background"), say("Started.")), rule(say("Later.")))
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script) as (harness, runtime):
            session = await runtime.open("k", agent={"model": "scripted"}, input="go")
            await entered.wait()
            gate.set()
            await session.wait()
            await harness.client.beta.agents.sessions.retrieve(session.id)
            await until(live_of(runtime, session.id), lambda: not live_of(runtime, session.id).journal.entries)
            (result,) = [entry for entry in harness.log if entry.kind == "tool_result"]
    assert result.status == 202
    assert "finished" in result.body


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_turn_of_many_calls_needs_few_commits(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    handlers = Handlers()

    @handlers.tool
    async def step(number: int) -> int:
        """Have an effect."""
        return number

    script = Script(rule(calls(*(call("step", number=n) for n in range(16))), say("ok")))
    path = tmp_path_factory.mktemp("many") / "calls.db"
    store = MemoryStore() if kind == "memory" else SQLiteStore(path)
    with anyio.fail_after(PATIENCE):
        async with answered_by(handlers, script, store=store) as (_, runtime):
            session = await runtime.open("k", agent={"model": "scripted"}, input="go")
            turn = await session.wait()
            commits = store.health.commits
    assert len(turn.calls) == 16
    # T1 and T2 are waited for; sixteen calls share them.
    assert commits < 16


async def test_a_call_that_kills_its_process_three_times_is_not_started_again() -> None:
    handlers = Handlers()
    ran: list[int] = []

    @handlers.tool(effects="idempotent")
    async def poison(context: ToolContext) -> str:
        """Never end."""
        ran.append(context.attempt)
        await anyio.sleep_forever()
        return ""

    store = MemoryStore()
    session = PlayedSession(pending=[called("c_a", "poison")])

    async def die(attempt: int) -> None:
        async with answering(session, handlers, store=store, drain_timeout=0.0) as stage:
            # A start that is not stored is none: an idempotent handler does not wait for it.
            await until_row(stage, "c_a", lambda row: row.state is CallState.STARTED and row.attempt == attempt)
            store.crash()

    for attempt in (1, 2, 3):
        with pytest.raises(StoreError):
            await die(attempt)
    async with answering(session, handlers, store=store) as stage:
        result = (await stage.answered("c_a"))["c_a"]
    assert result.success is False
    assert "will not be started again" in (result.error or "")
    assert len(ran) <= 3
