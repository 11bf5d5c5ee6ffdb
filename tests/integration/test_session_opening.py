"""Sessions by key: created once, whatever is lost on the way, and found again by whoever comes later."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from answerback import (
    ApiError,
    ConfigurationError,
    Handlers,
    MemoryStore,
    Runtime,
    SessionError,
    SessionGoneError,
    SQLiteStore,
    StoreLockedError,
)
from answerback.testing import Fault, Harness, run_harness
from integration.rig import PATIENCE, answering, running
from integration.virtual_time import run_virtual
from wire_player import PlayedSession, call, play

AGENT = {"model": "scripted"}


def weather() -> Handlers:
    """Return one tool."""
    handlers = Handlers()

    @handlers.tool(effects="read")
    async def weather(city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    return handlers


async def test_one_key_is_one_session_within_a_runtime_and_after_it() -> None:
    store = MemoryStore()
    with anyio.fail_after(PATIENCE):
        async with run_harness() as harness:
            async with Runtime(harness.client, handlers=weather(), store=store) as runtime:
                first = await runtime.open("ticket-1", agent=AGENT, input="hello")
                again = await runtime.open("ticket-1", agent={"model": "another"}, input="not asked")
                other = await runtime.open("ticket-2", agent=AGENT, input="second")
                await other.wait()
                turn = await first.wait()
            async with Runtime(harness.client, handlers=weather(), store=store) as runtime:
                later = await runtime.open("ticket-1", agent=AGENT, input="hello")
                assert (await later.wait()).turn_id == turn.turn_id
            sessions = harness.control.state()["sessions"]
    assert first.id == again.id == later.id != other.id
    assert len(sessions) == 2
    assert [len(one["turns"]) for one in sessions] == [1, 1]
    assert turn.output_text == "You said: hello"


async def test_a_key_opened_from_several_tasks_at_once_is_created_once() -> None:
    ids: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with (
            run_harness() as harness,
            Runtime(harness.client, handlers=weather(), store=MemoryStore()) as runtime,
        ):

            async def open_it() -> None:
                ids.append((await runtime.open("shared", agent=AGENT, input="hello")).id)

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(open_it)
            assert len(harness.control.state()["sessions"]) == 1
    assert len(set(ids)) == 1


async def test_create_makes_a_new_session_each_time() -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            run_harness() as harness,
            Runtime(harness.client, handlers=weather(), store=MemoryStore()) as runtime,
        ):
            first = await runtime.create(agent=AGENT, input="one")
            second = await runtime.create(agent=AGENT, input="two")
    assert first.id != second.id


async def test_a_creation_declares_the_handlers_and_keeps_what_the_application_gave() -> None:
    with anyio.fail_after(PATIENCE):
        async with play() as player, running(player, weather()) as stage:
            await stage.runtime.create(agent=AGENT, metadata={"team": "blue"}, environment={"type": "none"})
            (body,) = player.created
    assert [tool["name"] for tool in body["agent"]["tools"]] == ["weather"]
    assert body["metadata"]["team"] == "blue"
    assert body["metadata"].keys() >= {"team", "answerback_key"}


async def test_tools_given_by_the_application_are_kept_and_names_without_handler_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    tools: list[dict[str, object]] = [{"type": "function", "name": "missing"}, {"type": "web_search"}]
    with anyio.fail_after(PATIENCE):
        async with play() as player, running(player, weather()) as stage:
            await stage.runtime.create(agent={**AGENT, "tools": tools})
            (body,) = player.created
    assert body["agent"]["tools"] == tools
    assert "missing" in caplog.text


LOST: dict[str, list[dict[str, Any]]] = {
    "done, told 503": [{"status": 503, "apply": True}],
    "done, no answer": [{"reset": True, "apply": True}],
    "not done, no answer": [{"reset": True}],
    "not done, then done without a word": [{"status": 500}, {"reset": True, "apply": True}],
    "throttled": [{"status": 429, "headers": {"retry-after-ms": "10"}}],
}


def virtually(main: Callable[[Harness, Runtime], Awaitable[None]], backend: str, **options: Any) -> None:
    """Run a test on the harness in virtual time, where waiting for a list that lags costs nothing."""

    async def run() -> None:
        async with (
            run_harness(**options) as harness,
            Runtime(harness.client, handlers=weather(), store=MemoryStore()) as runtime,
        ):
            await main(harness, runtime)

    run_virtual(run, backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
def test_a_creation_without_a_clear_answer_still_makes_one_session(lost: list[dict[str, Any]], backend: str) -> None:
    async def main(harness: Harness, runtime: Runtime) -> None:
        session = await runtime.open("ticket", agent=AGENT, input="hello")
        assert (await session.wait()).output_text == "You said: hello"
        (only,) = harness.control.state()["sessions"]
        assert only["session"]["id"] == session.id
        assert len(only["turns"]) == 1

    faults = [Fault(on="create", do=do) for do in lost]
    virtually(main, backend, faults=faults, knobs={"list_lag": 2.0})


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_list_that_cannot_be_read_is_not_taken_for_an_empty_one(backend: str) -> None:
    async def main(harness: Harness, runtime: Runtime) -> None:
        await runtime.open("ticket", agent=AGENT, input="hello")
        assert len(harness.control.state()["sessions"]) == 1

    faults = [Fault(on="create", do={"reset": True, "apply": True}), Fault(on="get", do={"status": 503}, times=4)]
    virtually(main, backend, faults=faults)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_creation_given_up_without_a_clear_answer_is_taken_up_by_the_next_open(backend: str) -> None:
    async def main(harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(ApiError):
            await runtime.open("ticket", agent=AGENT, input="hello")
        (made,) = harness.control.state()["sessions"]
        harness.faults.clear()
        session = await runtime.open("ticket", agent=AGENT, input="hello")
        assert session.id == made["session"]["id"]
        assert len(harness.control.state()["sessions"]) == 1

    faults = [Fault(on="create", do={"reset": True, "apply": True}), Fault(on="get", do={"status": 503}, times=1000)]
    virtually(main, backend, faults=faults)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_creation_that_is_refused_frees_its_key(backend: str) -> None:
    async def main(harness: Harness, runtime: Runtime) -> None:
        with pytest.raises(ApiError) as refused:
            await runtime.open("ticket", agent=AGENT, input="hello")
        assert refused.value.status == 400
        await runtime.open("ticket", agent=AGENT, input="hello")
        assert len(harness.control.state()["sessions"]) == 1

    virtually(main, backend, faults=[Fault(on="create", do={"status": 400})])


async def test_what_cannot_be_a_creation_is_refused_before_anything_is_sent() -> None:
    with anyio.fail_after(PATIENCE):
        async with play() as player, running(player, weather()) as stage:
            for params in ({}, {"agent": AGENT, "stream": True}, {"agent": AGENT, "metadata": {"at": object()}}):
                with pytest.raises(ConfigurationError):
                    await stage.runtime.open("ticket", **params)
            with pytest.raises(ConfigurationError):
                await stage.runtime.open("", agent=AGENT)
            with pytest.raises(ConfigurationError):
                await stage.runtime.attach("")
            assert player.requests == []
            # None of them has taken the key.
            await stage.runtime.open("ticket", agent=AGENT)


async def test_attaching_writes_nothing_on_the_session_and_attaching_twice_is_once() -> None:
    handlers = weather()
    session = PlayedSession(pending=[call("c_a", "weather", {"city": "Jeju"})])
    async with answering(session, handlers) as stage:
        await stage.runtime.attach("sess_1")
        await stage.answered("c_a")
        await (await stage.runtime.attach("sess_1")).wait()
        assert {request.method for request in stage.player.requests if not request.path.endswith("/events")} == {"GET"}
        assert session.opened == 1
    assert len(stage.player.results()) == 1


async def test_attaching_to_a_session_that_does_not_exist_says_so_to_who_waits() -> None:
    with anyio.fail_after(PATIENCE):
        async with play() as player, running(player, weather()) as stage:
            ref = await stage.runtime.attach("sess_nowhere")
            with pytest.raises(SessionGoneError) as gone:
                await ref.wait()
    assert gone.value.session_id == "sess_nowhere"


async def test_a_session_without_a_turn_has_nothing_to_wait_for() -> None:
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player, running(player, weather()) as stage:
            ref = await stage.runtime.attach("sess_1")
            with pytest.raises(SessionError):
                await ref.wait()


async def test_a_detached_session_is_not_followed_at_the_next_start_but_can_be_attached_again() -> None:
    store = MemoryStore()
    session = PlayedSession()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, weather(), store=store) as stage:
                ref = await stage.runtime.attach("sess_1")
                await player.until(lambda: session.live == 1)
                await ref.detach()
                await player.until(lambda: session.live == 0)
            session.require(call("c_a", "weather", {"city": "Seoul"}))
            async with running(player, weather(), store=store) as stage:
                assert stage.runtime.status().sessions == []
            assert player.results() == []
            async with running(player, weather(), store=store) as stage:
                await stage.runtime.attach("sess_1")
                await stage.answered("c_a")


async def test_only_sessions_with_something_open_are_followed_at_a_start() -> None:
    store = MemoryStore()
    busy = PlayedSession(session_id="sess_busy")
    quiet = PlayedSession(session_id="sess_quiet", pending=[call("c_q", "weather", {"city": "Ulsan"})])
    with anyio.fail_after(PATIENCE):
        async with play(busy, quiet) as player:
            async with running(player, weather(), store=store) as stage:
                await (await stage.runtime.attach("sess_quiet")).wait()
                await stage.runtime.attach("sess_busy")
            busy.require(call("c_b", "weather", {"city": "Busan"}))
            async with running(player, weather(), store=store) as stage:
                followed = [one.session_id for one in stage.runtime.status().sessions]
                await stage.answered("c_b")
    assert followed == ["sess_busy"]


async def test_two_runtimes_cannot_share_a_file_and_the_second_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with anyio.fail_after(PATIENCE):
        async with play(PlayedSession()) as player, running(player, weather(), store=SQLiteStore(path)):
            with pytest.raises(StoreLockedError) as locked:
                async with running(player, weather(), store=SQLiteStore(path)):
                    pytest.fail("the second runtime started")
    assert locked.value.path == str(path)
    assert "pid" in locked.value.owner


async def test_the_intent_that_is_stored_is_the_body_that_is_sent(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "calls.db")
    with anyio.fail_after(PATIENCE):
        async with play() as player, running(player, weather(), store=store) as stage:
            await stage.runtime.open("ticket", agent=AGENT, input="hello")
            (record,) = await store.sessions()
            (request,) = [one for one in player.requests if one.method == "POST"]
    assert record.request == request.body
    assert msgspec.json.decode(request.body)["metadata"]["answerback_key"] == record.local_id
