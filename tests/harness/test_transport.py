"""The in-process transport: bodies stream both ways, either side may leave, and time may be virtual."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest
import trio
import trio.testing
from openai import AsyncOpenAI
from starlette.types import ASGIApp, Receive, Scope, Send

from answerback.harness.transport import WINDOW
from answerback.testing import Script, StreamingASGITransport, call, rule, run_harness, say, sleep
from harness.flow import agent, open_session, post, result, until

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-from", b"app")]}


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


@contextlib.asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncGenerator[httpx2.AsyncClient]:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async with httpx2.AsyncClient(
                transport=StreamingASGITransport(app, tasks=tasks), base_url="http://app.invalid"
            ) as client:
                yield client
            tasks.cancel_scope.cancel()


async def test_the_app_sees_the_request_as_it_was_sent() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.update(scope)
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        seen["body"] = body
        await send(START)
        await send(piece(b"ok", more=False))

    async with client_of(app) as client:
        response = await client.post("/a%20b?x=1&y=%20", content=b"12345", headers={"X-Mine": "1"})
    assert (response.status_code, response.content, response.headers["x-from"]) == (200, b"ok", "app")
    assert (seen["method"], seen["path"], seen["raw_path"], seen["query_string"]) == (
        "POST", "/a b", b"/a%20b", b"x=1&y=%20",
    )  # fmt: skip
    assert (b"x-mine", b"1") in seen["headers"]
    assert seen["body"] == b"12345"


async def test_an_endless_response_is_read_as_it_comes() -> None:
    asked = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(piece(b"first"))
        await asked.wait()
        await send(piece(b"second"))
        await anyio.sleep_forever()

    async with client_of(app) as client, client.stream("GET", "/") as response:
        chunks = response.aiter_raw()
        async with contextlib.aclosing(chunks):
            assert await anext(chunks) == b"first"
            asked.set()
            assert await anext(chunks) == b"second"


async def test_a_request_body_streams_to_the_app() -> None:
    received: list[bytes] = []
    more = anyio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"one"
        await more.wait()
        yield b"two"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive()).get("more_body"):
            received.append(message["body"])
            more.set()
        await send(START)
        await send(piece(b"", more=False))

    async with client_of(app) as client:
        await client.post("/", content=body())
    assert received == [b"one", b"two"]


async def test_a_client_that_leaves_is_seen_by_the_app_which_is_not_cancelled() -> None:
    noticed, finished = anyio.Event(), anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(piece(b"first"))
        while (await receive())["type"] != "http.disconnect":
            pass
        noticed.set()
        with pytest.raises(OSError):
            await send(piece(b"late"))
        await anyio.lowlevel.checkpoint()
        finished.set()

    async with client_of(app) as client:
        async with client.stream("GET", "/"):
            pass
        await noticed.wait()
        await finished.wait()


async def test_a_client_cancelled_while_it_waits_leaves_the_app_to_finish() -> None:
    entered, finished = anyio.Event(), anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        entered.set()
        await receive()
        finished.set()

    async with client_of(app) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.get, "/")
            await entered.wait()
            tasks.cancel_scope.cancel()
        await finished.wait()


async def test_an_app_that_fails_or_aborts_is_a_broken_connection_and_no_crash(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/fails":
            raise LookupError("a bug")
        await send(START)
        await send(piece(b"part"))
        if scope["path"] == "/aborts":
            scope["extensions"]["answerback.abort"]["abort"]()

    async with client_of(app) as client:
        for path in ("/fails", "/aborts", "/incomplete"):
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get(path)
    assert [record.message for record in caplog.records] == ["the app failed"]


async def test_silence_longer_than_the_read_timeout_is_a_read_timeout() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/body":
            await send(START)
        await anyio.sleep_forever()

    async with client_of(app) as client:
        for path in ("/head", "/body"):
            with pytest.raises(httpx2.ReadTimeout):
                await client.get(path, timeout=0.01)


async def test_an_app_that_sends_faster_than_it_is_read_has_to_wait() -> None:
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for n in range(8):
            await send(piece(b"x" * (WINDOW // 2), more=n < 7))
            sent.append(n)

    async with client_of(app) as client, client.stream("GET", "/") as response:
        await anyio.wait_all_tasks_blocked()
        assert sent == [0, 1]
        assert len(await response.aread()) == 4 * WINDOW
        assert len(sent) == 8


async def test_the_plain_official_client_works_over_it_too() -> None:
    async with run_harness() as harness:
        client = AsyncOpenAI(api_key="k", base_url=harness.base_url, http_client=harness.http)
        session = await open_session(client, "hi")
        await until(client, session.id, "idle")


async def test_copies_of_the_client_keep_talking_to_the_harness() -> None:
    async with run_harness() as harness:
        copied = harness.client.with_options(max_retries=0, timeout=3)
        assert (await copied.beta.agents.sessions.list()).data == []


async def test_closing_a_stream_is_seen_by_the_harness_and_cancels_no_turn() -> None:
    async with run_harness(Script(rule(call("get_customer"), say("x")))) as harness:
        session = await open_session(harness.client, "go")
        await until(harness.client, session.id, "requires_action")
        stream = await harness.client.beta.agents.sessions.events.stream(session.id)
        assert harness.control.state()["sessions"][0]["subscribers"] == 1
        await stream.close()
        with anyio.fail_after(5):
            while harness.control.state()["sessions"][0]["subscribers"]:
                await anyio.lowlevel.checkpoint()
        assert (await harness.client.beta.agents.sessions.retrieve(session.id)).status == "requires_action"


# -- virtual time (trio only: asyncio has no clock to put in place of its own) -----------------------------------------


def test_hours_pass_at_once_under_a_virtual_clock_and_exactly_as_many_as_were_asked_for() -> None:
    async def main() -> float:
        script = Script(rule(sleep(3600), call("get_customer"), sleep(7200), say("Three hours.")))
        async with run_harness(script, knobs={"admission": "sync"}) as harness:
            begun = trio.current_time()
            stream = await open_session(harness.client, "go", stream=True)
            async for event in stream:
                if event.type == "agent.session.requires_action":
                    action = event.session.required_actions[0]
                    await post(harness.client, event.session.id, result(action.call_id, action.turn_id))
            return trio.current_time() - begun

    passed = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert math.isclose(passed, 3 * 3600, abs_tol=1)


def test_no_thread_is_used_in_memory_so_virtual_time_is_safe_from_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_threads(*_: object, **__: object) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr(anyio.to_thread, "run_sync", no_threads)

    async def main() -> float:
        async with run_harness() as harness:
            begun = trio.current_time()
            stream = await open_session(harness.client, "hi", stream=True)
            assert [event.type async for event in stream][-1] == "agent.session.idle"
            return trio.current_time() - begun

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) < 1


def test_a_read_timeout_of_the_client_counts_virtual_seconds() -> None:
    async def main() -> float:
        fault = {"on": "stream", "do": {"stall": 3600.0}, "where": {"event": "agent.session.turn.created"}}
        async with run_harness(faults=[fault]) as harness:
            begun = trio.current_time()
            body = {"agent": agent(), "environment": {"type": "none"}, "input": "x", "stream": True}
            headers = {"openai-beta": "agents=v1", "authorization": "Bearer k"}
            url = f"{harness.base_url}/agents/sessions"
            with pytest.raises(httpx2.ReadTimeout):
                await harness.http.post(url, json=body, headers=headers, timeout=600)
            return trio.current_time() - begun

    passed = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert math.isclose(passed, 600, abs_tol=1)
