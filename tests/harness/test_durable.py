"""State on disk: what was accepted survives SIGKILL, turns go on, and SIGTERM ends a server with open streams."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from openai import AsyncOpenAI

from answerback.harness.persistence import Documents
from answerback.testing import ModelRequest, Script, call, calls, rule, run_harness, say, sleep
from harness.flow import (
    HEADERS,
    created,
    following,
    message,
    open_session,
    post,
    result,
    strict_harness,
    until,
    waiting_session,
)

SERVE = """
import json, sys, anyio
from answerback.harness.server import serve
anyio.run(lambda: serve(**json.loads(sys.argv[1])))
"""
SCRIPT = {
    "rules": [
        {
            "when": "look",
            "steps": [
                {"say": "One moment.", "phase": "commentary"},
                {
                    "call": [
                        {"name": "get_customer", "arguments": {"customer_id": "1"}, "call_id": "call_1"},
                        {"name": "get_customer", "arguments": {"customer_id": "2"}, "call_id": "call_2"},
                    ]
                },
                {"say": "{{ results[0].output }} and {{ results[1].output }}"},
            ],
        },
        {"steps": [{"say": "You said: {{ input }}"}]},
    ]
}


class Server:
    """A harness in a process of its own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        script = folder / "script.json"
        script.write_text(json.dumps(SCRIPT))
        given = {"state_dir": str(folder / "state"), "script": str(script), **options}
        self.process = subprocess.Popen([sys.executable, "-c", SERVE, json.dumps(given)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.line = json.loads(self.process.stdout.readline())

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(10)
        assert self.process.stdout is not None, "it was asked for"
        self.process.stdout.close()
        return code


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncGenerator[tuple[Server, Any]]:
    server = await anyio.to_thread.run_sync(lambda: Server(folder, **options))
    try:
        with anyio.fail_after(20):
            async with AsyncOpenAI(
                api_key="k", base_url=server.line["base_url"], max_retries=0, _strict_response_validation=True
            ) as client:
                yield server, client
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.stop, signal.SIGKILL)


async def test_everything_accepted_survives_sigkill_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        first = result("call_1", turn_id, success=True, output="one")
        await post(client, session.id, first, key="k1")
        done = await until(client, (await open_session(client, "hi", metadata={"k": "v"})).id, "idle")
        items = [item.to_dict() async for item in client.beta.agents.sessions.items.list(done.id)]
        log = (await httpx_get(server, "/log")).json()
        assert await anyio.to_thread.run_sync(server.stop, signal.SIGKILL) == -signal.SIGKILL
    async with serving(tmp_path) as (server, client):
        again = await client.beta.agents.sessions.retrieve(session.id)
        assert [action.call_id for action in again.required_actions] == ["call_2"]
        assert again.agent == session.agent
        assert [i.to_dict() async for i in client.beta.agents.sessions.items.list(done.id)] == items
        assert [s.id async for s in client.beta.agents.sessions.list(metadata={"k": "v"})] == [done.id]
        assert (await httpx_get(server, "/log")).json() == log
        await post(client, session.id, first, key="k1")
        await post(client, session.id, result("call_2", turn_id, success=True, output="two"))
        await until(client, session.id, "idle")
        newest = (await client.beta.agents.sessions.items.list(session.id, limit=1)).data[0]
        assert newest.output_text == "one and two"
        texts = [i.output_text async for i in client.beta.agents.sessions.items.list(session.id) if i.type == "message"]
        assert texts.count("One moment.") == 1, "a step that was done is not done again"
        log = (await httpx_get(server, "/log")).json()
        assert [e["effect"] for e in log if e["call_id"] == "call_1"] == [True, False]
        fresh = await open_session(client, "hi")
        assert fresh.id not in (session.id, done.id), "ids go on after a restart"


async def httpx_get(server: Server, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        return await http.get(server.line["control_url"] + path)


async def test_killed_at_any_moment_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """Post messages while the server is killed: each one answered 202 is there afterwards, exactly once."""
    acknowledged: list[str] = []
    async with serving(tmp_path) as (server, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")

        async def kill_later() -> None:
            while len(acknowledged) < 7:
                await anyio.sleep(0)
            server.process.kill()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_later)
            for n in range(200):
                try:
                    await post(client, session.id, message(f"<{n}>"), key=f"k{n}")
                except Exception:
                    break
                acknowledged.append(f"<{n}>")
            tasks.cancel_scope.cancel()
        assert len(acknowledged) >= 7
    async with serving(tmp_path) as (server, client):
        for n, _ in enumerate(acknowledged):
            await post(client, session.id, message(f"<{n}>"), key=f"k{n}")
        await until(client, session.id, "idle")
        with anyio.fail_after(5):
            texts: list[str] = []
            while not set(acknowledged) <= set(texts):
                items = client.beta.agents.sessions.items.list(session.id, limit=100)
                texts = [i.content[0].text async for i in items if i.type == "message" and i.role == "user"]
        assert sorted(texts.count(text) for text in acknowledged) == [1] * len(acknowledged)


async def test_sigterm_ends_a_server_with_open_streams_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, client):
        session = await waiting_session(client)
        async with following(client, session.id) as first, following(client, session.id) as second:
            started = time.monotonic()
            assert await anyio.to_thread.run_sync(server.stop, signal.SIGTERM) == 0
            assert time.monotonic() - started < 1.0
            await first.end()
            await second.end()
            assert first.error is None, "the stream was ended, not broken"


async def test_sigterm_does_not_wait_for_a_request_that_hangs(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps([{"on": "get", "do": {"stall": 3600}}]))
    async with serving(tmp_path, faults=str(faults)) as (server, client), anyio.create_task_group() as tasks:

        async def hang() -> None:
            assert (await client.beta.agents.sessions.list()).data == []

        tasks.start_soon(hang)
        while not (await httpx_get(server, "/faults")).json()["fired"]:
            pass
        started = time.monotonic()
        assert await anyio.to_thread.run_sync(server.stop, signal.SIGTERM) == 0
        assert time.monotonic() - started < 1.0


async def test_the_line_on_stdout_tells_where_it_is(tmp_path: Path) -> None:
    async with serving(tmp_path, api_key="secret") as (server, _):
        assert server.line["pid"] == server.process.pid
        assert server.line["state"] == str(tmp_path / "state")
        assert server.line["base_url"].endswith("/v1")
        async with httpx2.AsyncClient() as http:
            refused = await http.get(server.line["base_url"] + "/agents/sessions", headers=HEADERS)
            assert refused.status_code == 401
        assert (await httpx_get(server, "/state")).json()["sessions"] == []


def run_serve(options: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVE, json.dumps(options)], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"script": "/nowhere/script.json"}, "cannot read the script"),
        ({"knobs": {"colour": "red"}}, "bad knob"),
        ({"faults": "seed:x"}, "seed:N"),
        ({"host": "203.0.113.7"}, "cannot listen"),
    ],
)
def test_options_that_cannot_be_used_are_refused_at_start(options: dict[str, Any], text: str) -> None:
    finished = run_serve(options)
    assert finished.returncode != 0
    assert text in finished.stderr
    assert finished.stdout == ""


async def test_nothing_is_answered_or_published_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Documents.write
    begun, disk = anyio.Event(), anyio.Event()

    async def slow_write(documents: Documents, rows: Any) -> None:
        if any(kind == "key" for kind, _, _ in rows):
            begun.set()
            await disk.wait()
        await write(documents, rows)

    async with strict_harness(state_dir=tmp_path) as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        monkeypatch.setattr(Documents, "write", slow_write)
        told: list[str] = []

        async def do(name: str, request: Any) -> None:
            await request
            told.append(name)

        async with following(client, session.id) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(do, "post", post(client, session.id, result("call_1", turn_id), key="k"))
            await begun.wait()
            tasks.start_soon(do, "get", client.beta.agents.sessions.retrieve(session.id))
            await anyio.wait_all_tasks_blocked()
            assert (told, harness.log[-1].effect) == ([], True), "it is done in memory, and nobody knows yet"
            assert [kind for kind in stream.types if kind == "requires_action"] == []
            disk.set()
            await stream.seen("requires_action")
        assert sorted(told) == ["get", "post"]


# -- restarts in one process -------------------------------------------------------------------------------------------


async def test_a_restart_runs_an_accepted_message_that_was_not_admitted(tmp_path: Path) -> None:
    knobs = {"admission": "async", "admission_delay": 3600.0}
    async with strict_harness(state_dir=tmp_path, knobs=knobs) as (_, client):
        session = await open_session(client, "wait")
    async with strict_harness(state_dir=tmp_path, knobs={"admission_delay": 0.0}) as (_, client):
        assert (await until(client, session.id, "requires_action")).required_actions


async def test_a_restart_does_an_interrupted_message_again_and_lists_it_once(tmp_path: Path) -> None:
    script = Script(rule(call("get_customer"), say("A text that takes its time.")))
    async with strict_harness(script, state_dir=tmp_path, knobs={"delta_delay": 3600.0}) as (harness, client):
        session = await waiting_session(client, "go")
        action = session.required_actions[0]
        async with following(client, session.id) as stream:
            await post(client, session.id, result(action.call_id, action.turn_id))
            await stream.seen("turn.content_part.added")
        assert harness.log[-1].effect
    async with strict_harness(script, state_dir=tmp_path) as (_, client):
        await until(client, session.id, "idle")
        texts = [i.output_text async for i in client.beta.agents.sessions.items.list(session.id) if i.type == "message"]
        assert texts == ["A text that takes its time.", ""]


async def test_a_restart_registers_a_call_that_was_only_announced(tmp_path: Path) -> None:
    async with (
        strict_harness(state_dir=tmp_path, knobs={"registration_gap": 3600.0}) as (_, client),
        created(client, "wait") as stream,
    ):
        added = await stream.seen("turn.item.added", 2)
    async with strict_harness(state_dir=tmp_path) as (_, client):
        again = await until(client, added.session_id, "requires_action")
        assert [action.call_id for action in again.required_actions] == [added.item.call_id]


async def test_a_python_model_is_asked_again_and_its_done_steps_are_skipped(tmp_path: Path) -> None:
    asked: list[int] = []

    async def model(request: ModelRequest) -> AsyncGenerator[Any]:
        asked.append(len(request.results))
        request.memory["greeting"] = request.memory.get("greeting", f"Hello {request.input}")
        yield say(request.memory["greeting"], phase="commentary")
        yield calls(call("get_customer", customer_id="1"), call("get_customer", customer_id="2"))
        assert [known.output for known in request.results] == [{"n": 1}, {"n": 2}]
        yield say("Both are in.")

    async with strict_harness(model, state_dir=tmp_path) as (_, client):
        session = await waiting_session(client, "you")
        first, second = session.required_actions
        await post(client, session.id, result(first.call_id, first.turn_id, success=True, output='{"n": 1}'))
    async with strict_harness(model, state_dir=tmp_path) as (_, client):
        await post(client, session.id, result(second.call_id, second.turn_id, success=True, output='{"n": 2}'))
        await until(client, session.id, "idle")
        items = client.beta.agents.sessions.items.list(session.id, order="asc")
        texts = [i.output_text async for i in items if i.type == "message" and i.role == "assistant"]
        assert texts == ["Hello you", "Both are in."]
    assert asked == [0, 0]


async def test_a_rule_used_up_stays_used_up(tmp_path: Path) -> None:
    script = Script(rule(say("First."), once=True), rule(say("Later.")))
    for expected in ("First.", "Later."):
        async with strict_harness(script, state_dir=tmp_path) as (_, client):
            async with created(client, "go") as stream:
                await stream.end()
            assert next(e.text for e in stream.events if e.type.endswith("text.done")) == expected


async def test_deleted_sessions_and_their_rows_stay_deleted(tmp_path: Path) -> None:
    async with strict_harness(state_dir=tmp_path) as (_, client):
        session = await until(client, (await open_session(client, "hi")).id, "idle")
        await client.beta.agents.sessions.delete(session.id)
    async with strict_harness(state_dir=tmp_path) as (harness, client):
        assert (await client.beta.agents.sessions.list()).data == []
        assert (await client.beta.agents.sessions.delete(session.id)).deleted
        assert harness.control.state()["deleted"] == [session.id]


async def test_a_failing_model_fails_its_turn_and_nothing_else() -> None:
    async def model(request: ModelRequest) -> AsyncGenerator[Any]:
        if request.input == "break":
            raise LookupError("a secret of the model")
        yield sleep(0)
        yield say("Fine.")

    async with strict_harness(model) as (_, client):
        async with created(client, "break") as stream:
            await stream.end()
        assert stream.types[-3:] == ["error", "turn.failed", "idle"]
        assert stream.events[-2].turn.error.to_dict() == {"code": "internal_error", "message": "The model failed."}
        await post(client, stream.events[0].session.id, message("go"))
        await until(client, stream.events[0].session.id, "idle")


async def test_a_harness_may_be_run_twice_in_one_process_on_one_folder(tmp_path: Path) -> None:
    async with run_harness(state_dir=tmp_path, transport="tcp") as harness:
        first = await open_session(harness.client, "hi")
    async with run_harness(state_dir=tmp_path, transport="tcp") as harness:
        assert (await harness.client.beta.agents.sessions.retrieve(first.id)).id == first.id
    assert [path.name for path in tmp_path.iterdir()] == ["harness.db"], "the write-ahead log was checkpointed"
