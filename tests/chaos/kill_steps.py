"""Where a worker can be killed: a table of step -> the method that is wrapped to notice it.

The product's code is not touched and knows nothing of it; the wrappers live in the worker process only. Steps inside
the handler (`entered`, `effect`) are reported by the worker's own handler.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import httpx2
import msgspec

from answerback.actors.api import OpenAIAgentsApi
from answerback.actors.journal import Journal
from answerback.handlers.execute import Executor
from answerback.model import CallState
from answerback.store.base import InsertCall, UpdateCall
from answerback.store.sqlite import SQLiteStore
from chaos.kill_case import Reached
from chaos.patching import replace

RESULTS = b"agent.session.input.tool_result"
HELD = 0.5
"""Seconds the server holds a POST of the step `submit-before`: longer than a restart takes to send it again."""


class Trigger:
    """Ends the worker at the n-th arrival at one step."""

    def __init__(self, step: str | None, *, occurrence: int, marker: Path, end: Callable[[], None]) -> None:
        self.step = step
        self._left = occurrence
        self._marker = marker
        self._end = end

    def __repr__(self) -> str:
        return f"<Trigger {self.step}, {self._left} left>"

    def hit(self, step: str) -> None:
        """Note that the worker is at `step`."""
        if step != self.step:
            return
        self._left -= 1
        if self._left == 0:
            self._marker.write_bytes(msgspec.json.encode(Reached(step, os.getpid())))
            self._end()


def kill_self() -> None:
    """End this process as `kill -9` does: nothing after this line runs."""
    os.kill(os.getpid(), signal.SIGKILL)


Hook: TypeAlias = Callable[[Trigger], None]


def _at_write(step: str, matches: Callable[[Any], bool]) -> Hook:
    """Notice a statement right after it was queued, before the writer can have seen it."""

    def install(trigger: Trigger) -> None:
        original = SQLiteStore.write

        def write(self: SQLiteStore, *statements: Any, lazy: bool = False) -> Any:
            receipt = original(self, *statements, lazy=lazy)
            for statement in statements:
                if matches(statement):
                    trigger.hit(step)
            return receipt

        replace(SQLiteStore, "write", write)

    return install


def _moves_to(target: CallState) -> Callable[[Any], bool]:
    return lambda statement: isinstance(statement, UpdateCall) and statement.target is target


def _before_entry(trigger: Trigger) -> None:
    """T1 is committed (for a `once` handler), the body is not entered."""
    original = Executor.start

    def start(self: Executor, *arguments: Any) -> Any:
        trigger.hit("started")
        return original(self, *arguments)

    replace(Executor, "start", start)


def _after_finish(trigger: Trigger) -> None:
    """T2 is committed, nobody was told."""
    original = Journal.finish

    async def finish(self: Journal, *arguments: Any, **options: Any) -> bool:
        stored = await original(self, *arguments, **options)
        trigger.hit("finished")
        return stored

    replace(Journal, "finish", finish)


def _after_post(trigger: Trigger) -> None:
    """The 202 was received and read, T3 is not written."""
    original = OpenAIAgentsApi.post

    async def post(self: OpenAIAgentsApi, session_id: str, body: bytes, *, key: str) -> None:
        await original(self, session_id, body, key=key)
        if RESULTS in body:
            trigger.hit("accepted")

    replace(OpenAIAgentsApi, "post", post)


def _is_results_post(request: httpx2.Request) -> bool:
    return request.method == "POST" and request.url.path.endswith("/events") and RESULTS in request.content


def _on_the_wire(trigger: Trigger) -> None:
    """The POST of a result is under way and the server has not applied it yet; it will, after our death."""
    original = httpx2.AsyncHTTPTransport.handle_async_request

    async def handle(self: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        if not _is_results_post(request):
            return await original(self, request)
        await _hold_up(request)
        answers: list[httpx2.Response] = []

        async def send() -> None:
            answers.append(await original(self, request))

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await _server_holds_it(request)
            trigger.hit("submit-before")
        return answers[0]

    replace(httpx2.AsyncHTTPTransport, "handle_async_request", handle)


def _answer_unread(trigger: Trigger) -> None:
    """The server applied the result and answered; nothing above the transport knows it."""
    original = httpx2.AsyncHTTPTransport.handle_async_request

    async def handle(self: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        response = await original(self, request)
        if _is_results_post(request):
            trigger.hit("submit-after")
        return response

    replace(httpx2.AsyncHTTPTransport, "handle_async_request", handle)


async def _server_holds_it(request: httpx2.Request) -> None:
    """Return when the server has the whole request and, held up by the fault rule, has not looked at it yet."""
    control = request.url.copy_with(path="/_harness/faults", query=None)
    # No TLS context: making one takes as long as the rest of the case.
    async with httpx2.AsyncClient(verify=False) as client:
        while True:
            rules = (await client.get(control)).json()["rules"]
            if any(rule["fired"] and rule["where"]["session"] == _session_of(request) for rule in rules):
                return


async def _hold_up(request: httpx2.Request) -> None:
    """Make the server keep the next POST of results of this session to itself for a while before it applies it."""
    rule = {"on": "post", "where": {"session": _session_of(request), "event": RESULTS.decode()}, "do": {"delay": HELD}}
    control = request.url.copy_with(path="/_harness/faults", query=None)
    async with httpx2.AsyncClient(verify=False) as client:
        (await client.post(control, json=[rule])).raise_for_status()


def _session_of(request: httpx2.Request) -> str:
    return request.url.path.split("/")[-2]


HOOKS: dict[str, Hook] = {
    "observe": _at_write("observe", lambda statement: isinstance(statement, InsertCall)),
    "start-queued": _at_write("start-queued", _moves_to(CallState.STARTED)),
    "started": _before_entry,
    "entered": lambda _: None,
    "effect": lambda _: None,
    "finish-queued": _at_write("finish-queued", _moves_to(CallState.FINISHED)),
    "finished": _after_finish,
    "submit-before": _on_the_wire,
    "submit-after": _answer_unread,
    "accepted": _after_post,
    "acked": _at_write("acked", _moves_to(CallState.ACKED)),
}
"""Every named step. The order is the order in the life of one call."""

PER_POST = frozenset({"submit-before", "submit-after", "accepted"})
"""Steps that results travelling together reach together, so possibly only once in a turn."""
