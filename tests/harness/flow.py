"""Short ways to say what the harness's tests do over and over."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import msgspec

from answerback.testing import Harness, Model, Script, call, calls, rule, run_harness, say

HEADERS = {"openai-beta": "agents=v1", "authorization": "Bearer sk-harness"}
NONE = {"type": "none"}
TWO_CALLS = Script(
    rule(
        "look",
        calls(
            call("get_customer", customer_id="1").identified("call_1"),
            call("get_customer", customer_id="2").identified("call_2"),
        ),
        say("Done."),
    ),
    rule("wait", call("get_customer", customer_id="1"), say("Waited.")),
    rule(say("You said: {{ input }}")),
)


def function(name: str = "get_customer", **extra: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}, **extra}


def agent(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "tools": list(tools) or [function()]}


def result(call_id: str, turn_id: str, **given: Any) -> dict[str, Any]:
    outcome = given or {"success": True, "output": "{}"}
    return {"type": "agent.session.input.tool_result", "turn_id": turn_id, "call_id": call_id, **outcome}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "agent.session.input.message", "input": [{"role": "user", "content": content}]}


CANCEL = {"type": "agent.session.input.cancel"}


@asynccontextmanager
async def strict_harness(script: Script | Model = TWO_CALLS, **options: Any) -> AsyncGenerator[tuple[Harness, Any]]:
    """Run a harness and talk to it with a client that refuses any frame or body outside the official types.

    The client is an AsyncOpenAI; it is typed as anything because its item and action unions would have to be narrowed
    at every access, which strict validation does at run time.
    """
    knobs: Mapping[str, Any] = {"admission": "sync", **options.pop("knobs", {})}
    with anyio.fail_after(20):
        async with run_harness(script, knobs=knobs, **options) as harness:
            yield harness, harness.make_client(_strict_response_validation=True, max_retries=0)


async def open_session(client: Any, text: str = "look", *tools: dict[str, Any], **extra: Any) -> Any:
    return await client.beta.agents.sessions.create(agent=agent(*tools), environment=NONE, input=text, **extra)


async def until(client: Any, session_id: str, status: str) -> Any:
    """Retrieve until the session has a status; the harness runs between the requests."""
    with anyio.fail_after(5):
        while True:
            session = await client.beta.agents.sessions.retrieve(session_id)
            if session.status == status:
                return session


async def waiting_session(client: Any, text: str = "look") -> Any:
    session = await open_session(client, text)
    return await until(client, session.id, "requires_action")


async def post(client: Any, session_id: str, *events: dict[str, Any], key: str | None = None) -> None:
    keyed = {} if key is None else {"idempotency_key": key}
    await client.beta.agents.sessions.events.create(session_id, events=list(events), **keyed)


async def raw(
    harness: Harness, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    """Send a request as it is given: a bytes body untouched, any other as JSON."""
    content = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
    given = HEADERS if headers is None else headers
    typed = {"content-type": "application/json", **given} if content is not None else given
    return await harness.http.request(method, f"{harness.base_url}{path}", content=content, headers=typed)


def refusal(response: httpx2.Response) -> tuple[int, str | None, str | None]:
    """Return status, code and param of an error envelope."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return response.status_code, error["code"], error["param"]


class Recorder:
    """Reads one event stream in a task and lets a test wait for what it brings."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.ended = False
        self.error: Exception | None = None
        self._changed = anyio.Event()

    @property
    def types(self) -> list[str]:
        return [event.type.removeprefix("agent.session.") for event in self.events]

    async def read(self, stream: Any) -> None:
        try:
            async for event in stream:
                self.events.append(event)
                self._notify()
        except Exception as error:
            self.error = error
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def seen(self, kind: str, times: int = 1) -> Any:
        """Wait until a type was seen so often; return the last such event."""
        with anyio.fail_after(5):
            while self.types.count(kind) < times:
                assert not self.ended, f"the stream ended with {self.types}, {self.error!r}"
                await self._changed.wait()
        return next(event for event in reversed(self.events) if event.type == f"agent.session.{kind}")

    async def end(self) -> None:
        with anyio.fail_after(5):
            while not self.ended:
                await self._changed.wait()


@asynccontextmanager
async def following(client: Any, session_id: str, **options: Any) -> AsyncGenerator[Recorder]:
    """Follow a session's events in a task for the length of a block."""
    recorder = Recorder()
    stream = await client.beta.agents.sessions.events.stream(session_id, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.read, stream)
        yield recorder
        tasks.cancel_scope.cancel()
    await stream.close()


@asynccontextmanager
async def created(client: Any, text: str = "look", **extra: Any) -> AsyncGenerator[Recorder]:
    """Create a session as a stream and read it in a task for the length of a block."""
    recorder = Recorder()
    stream = await open_session(client, text, stream=True, **extra)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.read, stream)
        yield recorder
        tasks.cancel_scope.cancel()
    await stream.close()
