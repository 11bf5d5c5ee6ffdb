"""The admin's HTTP: who may ask, what is answered, and what it does to a real runtime on a harness."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

from answerback import Handlers
from answerback.app import App
from answerback.daemon.admin import replies
from answerback.daemon.admin.actions import Actions
from answerback.daemon.admin.server import Probes, create_admin
from answerback.daemon.admin.streams import Streams
from answerback.daemon.condition import Condition
from answerback.daemon.feed import Feed
from answerback.daemon.heartbeat import DEAD_AFTER, Heartbeat
from answerback.daemon.metrics import Metrics
from answerback.daemon.open_calls import OpenCalls
from answerback.daemon.watchers import Watchers
from answerback.model import CallState
from answerback.runtime import Runtime
from answerback.store.sqlite import SQLiteStore
from answerback.testing import Script, StreamingASGITransport, call, rule, run_harness, say
from call_records import CANARY

PATIENCE = 20.0
TOKEN = "the-token"
SCRIPT = Script(
    rule("pay", call("pay", card=CANARY), say("{{ results[0].output }}{{ results[0].error }}")),
    rule(say("You said: {{ input }}")),
)


class Admin(msgspec.Struct):
    """An admin over a runtime, and a client with its token."""

    http: httpx2.AsyncClient
    runtime: Runtime
    condition: Condition
    pulse: Heartbeat
    stopped: anyio.Event
    feed: Feed

    async def json(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        response = await self.http.request(method, path, json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def call_in(self, state: CallState) -> str:
        """Return the id of the first call that gets into this state."""
        while not (found := await self.runtime.calls(states=[state])):
            await anyio.sleep(0)
        return found[0].public_id


def _entry(line: str) -> dict[str, Any]:
    """Return the entry of a line of a live path; comments and blank lines are empty ones."""
    entry: dict[str, Any] = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
    return entry


def _handlers() -> Handlers:
    handlers = Handlers()

    @handlers.tool(needs_approval=True)
    async def pay(card: str) -> str:
        """Pay."""
        return f"paid with {card}"

    return handlers


@asynccontextmanager
async def _admin(folder: Path, *, host: str = "127.0.0.1", **options: Any) -> AsyncGenerator[Admin]:
    app = App(handlers=_handlers(), agent=options.pop("agent", {"model": "any"}))
    calls, feed, stopped, pulse = OpenCalls(), Feed(), anyio.Event(), Heartbeat(lambda: None)
    state: list[Condition] = []
    metrics = Metrics(tools=app.handlers.names, calls=calls, figures=lambda: state[0].figures() if state else None)
    path = folder / "calls.db"
    with anyio.fail_after(PATIENCE):
        async with run_harness(SCRIPT) as harness:
            observer = Watchers([calls, metrics, feed])
            runtime = app.runtime(client=harness.client, store=SQLiteStore(path), observer=observer, drain_timeout=0.1)
            async with runtime:
                condition = Condition(
                    runtime, app="bot:app", path=path, since="now", handlers=app.handlers, calls=calls, pulse=pulse
                )
                state.append(condition)
                actions = Actions(runtime, app=app, stop=stopped.set)
                admin = create_admin(
                    Probes(condition, metrics), actions, Streams(feed, actions), token=TOKEN, host=host
                )
                async with anyio.create_task_group() as tasks:
                    transport = StreamingASGITransport(admin, tasks=tasks)
                    headers = {"Authorization": f"Bearer {TOKEN}"}
                    async with httpx2.AsyncClient(
                        transport=transport, base_url="http://127.0.0.1:9", headers=headers
                    ) as http:
                        yield Admin(http, runtime, condition, pulse, stopped, feed)
                    tasks.cancel_scope.cancel()


async def test_everything_but_the_two_probes_needs_the_token(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        for path in ("/healthz", "/metrics", "/events", "/nonsense"):
            for header in (
                {"Authorization": ""},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {TOKEN}"},
            ):
                response = await admin.http.get(path, headers=header)
                assert response.status_code == 401
                assert response.json()["error"]["type"] == "TokenRequired"
        for path in ("/livez", "/readyz"):
            assert (await admin.http.get(path, headers={"Authorization": ""})).status_code == 200
        assert (await admin.http.post("/drain", headers={"Authorization": ""})).status_code == 401
        assert not admin.stopped.is_set()


@pytest.mark.parametrize("host", ["evil.test", "127.0.0.1.evil.test", "evil.test:9", "", "10.0.0.7", "[::2]:9"])
async def test_a_page_elsewhere_that_reaches_the_port_is_turned_away(tmp_path: Path, host: str) -> None:
    async with _admin(tmp_path) as admin:
        response = await admin.http.get("/livez", headers={"Host": host})
        assert response.status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:9", "box.internal"])
async def test_our_own_names_are_served(tmp_path: Path, host: str) -> None:
    async with _admin(tmp_path, host="box.internal") as admin:
        assert (await admin.http.get("/livez", headers={"Host": host})).status_code == 200


async def test_bound_to_every_address_any_number_is_ours_and_no_name(tmp_path: Path) -> None:
    async with _admin(tmp_path, host="0.0.0.0") as admin:
        assert (await admin.http.get("/livez", headers={"Host": "10.0.0.7:9100"})).status_code == 200
        assert (await admin.http.get("/livez", headers={"Host": "evil.test"})).status_code == 421


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"{", 400, "no JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"verdict": 7}', 400, "verdict must be a text"),
        (b'{"verdict": "maybe"}', 400, "verdict must be one of"),
        (b'{"verdict": "failed"}', 400, "needs a text"),
    ],
)
async def test_a_body_that_makes_no_sense_is_refused(tmp_path: Path, content: bytes, status: int, says: str) -> None:
    async with _admin(tmp_path) as admin:
        response = await admin.http.post("/calls/abc/decide", content=content)
        assert response.status_code == status
        assert says in response.json()["error"]["message"]


# The in-process transport leaves the rest of such a body to trio's garbage collection, which warns.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_body_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        response = await admin.http.post("/calls/abc/decide", content=b"x" * (replies.BODY_LIMIT + 1))
        assert response.status_code == 413


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/calls/fffffff/decide", {"verdict": "unknown"}),
        ("/calls/fffffff/approve", None),
        ("/calls/fffffff/reject", None),
        ("/calls/fffffff/resend", None),
        ("/sessions/nobody/cancel", None),
        ("/sessions/nobody/pause", None),
        ("/sessions/nobody/resume", None),
        ("/sessions/nobody/wake", None),
        ("/sessions/nobody/messages", {"text": "hi"}),
        ("/sessions/no%2Fbody/wait", None),
        ("/nonsense", None),
    ],
)
async def test_a_name_nobody_has_is_404_and_says_so(tmp_path: Path, path: str, body: Any) -> None:
    async with _admin(tmp_path) as admin:
        error = (await admin.json("POST", path, body, status=404))["error"]
        assert set(error) == {"type", "message"}
        assert (
            "No call is named" in error["message"]
            or "No session is named" in error["message"]
            or "no POST" in error["message"]
        )


async def test_a_session_is_opened_with_its_first_message_and_talked_to(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        opened = (await admin.json("POST", "/sessions", {"key": "a/b", "text": "hello"}))["session"]
        assert opened["key"] == "a/b"
        turn = await admin.json("POST", "/sessions/a%2Fb/wait")
        assert (turn["status"], turn["output_text"]) == ("completed", "You said: hello")
        again = (await admin.json("POST", "/sessions", {"key": "a/b", "text": "not sent"}))["session"]
        assert again["session_id"] == opened["session_id"]
        turn = await admin.json("POST", f"/sessions/{opened['session_id']}/messages", {"text": "more"})
        assert turn["output_text"] == "You said: more"


@pytest.mark.parametrize("body", [{}, {"key": ""}, {"key": "new"}, {"key": 7}, {"key": "new", "text": ""}])
async def test_a_session_needs_a_key_and_a_first_message(tmp_path: Path, body: Any) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", body, status=400)


async def test_an_app_without_an_agent_opens_no_session(tmp_path: Path) -> None:
    async with _admin(tmp_path, agent=None) as admin:
        error = (await admin.json("POST", "/sessions", {"key": "k", "text": "hi"}, status=400))["error"]
        assert "no agent" in error["message"]


@pytest.mark.parametrize(("verb", "output"), [("approve", f"paid with {CANARY}"), ("reject", "too much")])
async def test_a_call_that_waits_is_decided_once(tmp_path: Path, verb: str, output: str) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", {"key": "k", "text": "pay"})
        name = await admin.call_in(CallState.WAITING_APPROVAL)
        facts = (await admin.json("POST", f"/calls/{name[:8]}/{verb}", {"by": "ada", "reason": "too much"}))["call"]
        assert facts["hash"] == name
        assert CANARY not in json.dumps(facts)
        assert output in (await admin.json("POST", "/sessions/k/wait"))["output_text"]
        again = (await admin.json("POST", f"/calls/{name}/{verb}", status=409))["error"]
        assert again["type"] == "DecisionError"


async def test_a_call_that_waits_for_nothing_cannot_be_decided_but_sent_again(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", {"key": "k", "text": "pay"})
        name = await admin.call_in(CallState.WAITING_APPROVAL)
        await admin.json("POST", f"/calls/{name}/resend", status=409)
        await admin.json("POST", f"/calls/{name}/approve")
        await admin.json("POST", "/sessions/k/wait")
        await admin.json("POST", f"/calls/{name}/decide", {"verdict": "happened", "output": 1}, status=409)
        facts = (await admin.json("POST", f"/calls/{name}/resend"))["call"]
        assert facts["state"] in {"submitted", "acked"}


async def test_a_session_is_paused_resumed_woken_and_cancelled(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", {"key": "k", "text": "pay"})
        await admin.call_in(CallState.WAITING_APPROVAL)
        assert (await admin.json("POST", "/sessions/k/pause"))["session"]["state"] == "paused"
        assert (await admin.json("POST", "/sessions/k/resume"))["session"]["state"] == "open"
        assert (await admin.json("POST", "/sessions/k/wake"))["session"]["key"] == "k"
        await admin.json("POST", "/sessions/k/cancel")
        assert (await admin.json("POST", "/sessions/k/wait"))["status"] == "cancelled"


async def test_drain_tells_the_daemon_and_readiness_goes_before_liveness(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        assert await admin.json("GET", "/readyz") == {"ready": True, "reasons": []}
        assert await admin.json("POST", "/drain", status=202) == {"draining": True}
        assert admin.stopped.is_set()
        admin.condition.draining = True
        assert await admin.json("GET", "/readyz", status=503) == {"ready": False, "reasons": ["draining"]}
        assert await admin.json("GET", "/livez") == {"alive": True}
        assert (await admin.json("GET", "/healthz"))["status"] == "draining"


async def test_a_loop_that_was_stuck_for_long_is_not_alive(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        admin.pulse._last -= DEAD_AFTER + 1
        assert await admin.json("GET", "/livez", status=503) == {"alive": False}


async def test_health_and_metrics_tell_counts_and_no_values(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", {"key": "k", "text": "pay"})
        await admin.call_in(CallState.WAITING_APPROVAL)
        health = await admin.json("GET", "/healthz")
        assert set(health) == {
            "status", "version", "pid", "since", "app", "tools", "loop_lag", "store", "sessions", "calls",
            "oldest_call_age", "streams", "wake_sources",
        }  # fmt: skip
        assert health["tools"] == [{"name": "pay", "effects": "once"}]
        assert health["calls"]["open"] == {"waiting_approval": 1}
        assert health["store"]["incarnation"] == 1
        metrics = (await admin.http.get("/metrics")).text
        assert 'answerback_calls{state="waiting_approval"} 1.0' in metrics
        assert CANARY not in json.dumps(health) + metrics
        assert "sess_" not in metrics


async def test_a_follower_sees_a_call_move_without_its_values(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin, admin.http.stream("GET", "/events") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == ": open"
        await admin.json("POST", "/sessions", {"key": "k", "text": "pay"})
        states: list[str] = []
        seen: list[str] = []
        async for line in lines:
            seen.append(line)
            entry = _entry(line)
            if entry.get("type") == "call":
                states.append(entry["state"])
                assert entry["tool"] == "pay"
            if states == ["requested", "waiting_approval"]:
                admin.feed.close()
        assert CANARY not in "".join(seen)


async def test_a_chat_follows_the_text_of_one_session(tmp_path: Path) -> None:
    async with _admin(tmp_path) as admin:
        await admin.json("POST", "/sessions", {"key": "k", "text": "hello"})
        await admin.json("POST", "/sessions/k/wait")
        async with admin.http.stream("GET", "/sessions/k/events") as response, anyio.create_task_group() as tasks:
            lines = response.aiter_lines()
            assert await anext(lines) == ": open"
            tasks.start_soon(admin.json, "POST", "/sessions/k/messages", {"text": "again"})
            async for line in lines:
                entry = _entry(line)
                if entry.get("delta"):
                    assert entry["delta"] == "You said: again"
                if entry.get("over"):
                    await admin.runtime.drain()
