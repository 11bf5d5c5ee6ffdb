"""The control API: what a test may see and change from outside, and who may not."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import pytest

from answerback.harness.app import create_app
from answerback.harness.core import Core
from answerback.testing import Harness, Script, StreamingASGITransport, call, rule, say, sleep
from harness.flow import CANCEL, message, open_session, post, result, strict_harness, until, waiting_session


async def control(harness: Harness, method: str, path: str, body: Any = None) -> httpx2.Response:
    return await harness.http.request(method, harness.base_url.removesuffix("/v1") + "/_harness" + path, json=body)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
async def test_the_log_lists_every_input_in_order(transport: str) -> None:
    async with strict_harness(transport=transport) as (harness, client):
        session = await waiting_session(client)
        turn_id = session.required_actions[0].turn_id
        await post(client, session.id, message("more"), key="k")
        await post(client, session.id, result("call_1", turn_id))
        with pytest.raises(Exception, match="Unknown pending"):
            await post(client, session.id, result("call_9", turn_id))
        await client.beta.agents.sessions.update(session.id, metadata={"a": "b"})
        await post(client, session.id, CANCEL)
        await client.beta.agents.sessions.delete(session.id)
        log = (await control(harness, "GET", "/log")).json()
        kinds = ["create", "message", "tool_result", "tool_result", "update", "cancel", "delete"]
        assert [entry["kind"] for entry in log] == kinds
        assert [entry["seq"] for entry in log] == [1, 2, 3, 4, 5, 6, 7]
        assert [entry["status"] for entry in log] == [201, 202, 202, 400, 200, 202, 200]
        assert [entry["effect"] for entry in log] == [True, True, True, False, True, True, True]
        assert {entry["session_id"] for entry in log} == {session.id}
        assert log[1]["idempotency_key"] == "k"
        assert (await control(harness, "GET", "/log?after=6")).json() == log[6:]


async def test_state_script_faults_and_clock_are_there_to_use() -> None:
    async with strict_harness(Script(rule(sleep(3600), say("slept")))) as (harness, client):
        session = await open_session(client, "x")
        state = (await control(harness, "GET", "/state")).json()
        assert state["sessions"][0]["session"]["id"] == session.id
        assert state["knobs"]["admission"] == "sync"
        assert (await control(harness, "POST", "/clock", {"advance": 3600})).status_code == 200
        await until(client, session.id, "idle")
        script = {"rules": [{"steps": [{"say": "new"}]}]}
        assert (await control(harness, "POST", "/script", script)).status_code == 200
        await post(client, session.id, message("x"))
        await until(client, session.id, "idle")
        assert (await client.beta.agents.sessions.items.list(session.id, limit=1)).data[0].output_text == "new"
        rules = [{"on": "get", "do": {"status": 500}, "after": 100}]
        assert (await control(harness, "POST", "/faults", rules)).status_code == 200
        listed = (await control(harness, "GET", "/faults")).json()
        assert (len(listed["rules"]), listed["fired"], listed["exhausted"]) == (1, [], False)
        assert (await control(harness, "DELETE", "/faults")).json()["rules"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [("/clock", {"advance": -1}), ("/clock", 5), ("/script", {}), ("/faults", [{"on": "sky"}]), ("/webhooks", {})],
)
async def test_nonsense_is_refused(path: str, body: Any) -> None:
    async with strict_harness() as (harness, _):
        assert (await control(harness, "POST", path, body)).status_code == 400


async def test_it_is_for_loopback_only_and_never_under_v1() -> None:
    core = Core(Script(rule(call("f"))))
    async with core.running():
        transport = StreamingASGITransport(create_app(core), tasks=core.tasks, client=("203.0.113.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://h.invalid") as client:
            with anyio.fail_after(5):
                assert (await client.get("/_harness/log")).status_code == 404
                assert (await client.get("/v1/_harness/log", headers={"openai-beta": "agents=v1"})).status_code == 401
