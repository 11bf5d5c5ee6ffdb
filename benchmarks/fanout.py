"""One turn of 8 parallel calls that take 100 ms each, from sending the message to having the answer.

Four ways to answer them, against the same harness in the same process, in turns, medians of the rounds:

- ours: a Runtime with a SQLiteStore on a file; every outcome is on stable storage before it is sent.
- helper: the official client's `sessions.stream(tool_handlers=...)`.
- gather, a POST per call: no store, all handlers at once, each result posted when it is there.
- gather, one POST: no store, all handlers at once, one POST with all results.

    python benchmarks/fanout.py [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback import Handlers, Runtime, SQLiteStore
from answerback.testing import Script, call, calls, rule, run_harness, say

WIDTH = 8
SECONDS = 0.1
QUESTION = "go"
ANSWER = "Done."
AGENT: dict[str, Any] = {"model": "benchmark"}
ENVIRONMENT: dict[str, Any] = {"type": "none"}

Way = Callable[[], Awaitable[str]]
"""Plays one turn and returns the model's answer."""


async def work(number: int) -> str:
    """Do something that takes a while."""
    await anyio.sleep(SECONDS)
    return f"result {number}"


def build_handlers() -> Handlers:
    handlers = Handlers()
    handlers.tool(name="work", settle=1)(work)
    return handlers


def build_script() -> Script:
    parallel = calls(*(call("work", number=number) for number in range(WIDTH)))
    return Script(rule(QUESTION, parallel, say(ANSWER)), rule(say("Hello.")))


@asynccontextmanager
async def ours(client: AsyncOpenAI, folder: Path) -> AsyncGenerator[Way]:
    """Answer with the runtime, durably."""
    store = SQLiteStore(folder / "calls.db")
    async with Runtime(client, handlers=build_handlers(), store=store) as runtime:
        session = await runtime.open("benchmark", agent=AGENT, environment=ENVIRONMENT, input="hello")
        await session.wait()

        async def turn() -> str:
            result = await session.run(QUESTION)
            assert len(result.calls) == WIDTH
            return result.output_text

        yield turn


async def idle_session(client: AsyncOpenAI) -> str:
    """Create a session whose first turn is over."""
    agent: Any = {**AGENT, "tools": build_handlers().definitions()}
    environment: Any = ENVIRONMENT
    sessions = client.beta.agents.sessions
    created = await sessions.create(agent=agent, environment=environment, input="hello")
    while (await sessions.retrieve(created.id)).status != "idle":  # noqa: ASYNC110 - before anything is timed
        await anyio.sleep(0.01)
    return created.id


@asynccontextmanager
async def helper(client: AsyncOpenAI, folder: Path) -> AsyncGenerator[Way]:
    """Answer with the official client's helper."""
    del folder
    session_id = await idle_session(client)

    async def turn() -> str:
        tools = {"work": lambda arguments: work(**arguments)}
        stream = client.beta.agents.sessions.stream(session_id, input=QUESTION, tool_handlers=tools)
        async with stream as events:
            return (await events.get_final_result()).output_text

    yield turn


class Gather:
    """Answer with a task per call and no store, over one stream that stays open, as the runtime's does."""

    def __init__(self, client: AsyncOpenAI, session_id: str, *, one_post: bool) -> None:
        self._events = client.beta.agents.sessions.events
        self._session_id = session_id
        self._one_post = one_post
        self._stream: Any = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Way]:
        """Subscribe for the length of a block."""
        self._stream = await self._events.stream(self._session_id)
        try:
            yield self.turn
        finally:
            await self._stream.close()

    async def turn(self) -> str:
        """Send the message, answer the calls, return the model's answer."""
        message: Any = {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
        started, answer = False, ""
        await self._post([{"type": "agent.session.input.message", "input": [message]}])
        async with anyio.create_task_group() as tasks:
            while True:
                event = await self._stream.__anext__()
                if event.type == "agent.session.turn.created":
                    started = True
                elif event.type == "agent.session.turn.item.added" and event.item.type == "function_call":
                    if not self._one_post:
                        tasks.start_soon(self._answer_one, event.item)
                elif event.type == "agent.session.requires_action" and self._one_post:
                    if len(event.session.required_actions) == WIDTH:
                        tasks.start_soon(self._answer_all, event.session.required_actions)
                elif event.type == "agent.session.turn.item.done" and event.item.type == "message":
                    answer = "".join(getattr(part, "text", "") for part in event.item.content)
                elif event.type == "agent.session.idle" and started:
                    return answer

    async def _answer_one(self, asked: Any) -> None:
        await self._post([await self._result(asked)])

    async def _answer_all(self, asked: list[Any]) -> None:
        results: list[Any] = []

        async def answer(action: Any) -> None:
            results.append(await self._result(action))

        async with anyio.create_task_group() as tasks:
            for action in asked:
                tasks.start_soon(answer, action)
        await self._post(results)

    async def _result(self, asked: Any) -> Any:
        arguments = asked.arguments if isinstance(asked.arguments, dict) else json.loads(asked.arguments)
        return {
            "type": "agent.session.input.tool_result",
            "turn_id": asked.turn_id,
            "call_id": asked.call_id,
            "success": True,
            "output": await work(**arguments),
        }

    async def _post(self, events: list[Any]) -> None:
        await self._events.create(self._session_id, events=events)


def gather(*, one_post: bool) -> Callable[[AsyncOpenAI, Path], Any]:
    @asynccontextmanager
    async def way(client: AsyncOpenAI, folder: Path) -> AsyncGenerator[Way]:
        del folder
        async with Gather(client, await idle_session(client), one_post=one_post).open() as turn:
            yield turn

    return way


WAYS: dict[str, Callable[[AsyncOpenAI, Path], Any]] = {
    "ours": ours,
    "helper": helper,
    "gather, a POST per call": gather(one_post=False),
    "gather, one POST": gather(one_post=True),
}


async def timed(turn: Way) -> float:
    """Return the milliseconds a turn takes."""
    began = time.perf_counter()
    answer = await turn()
    took = (time.perf_counter() - began) * 1000
    assert answer == ANSWER, answer
    return took


async def measure(rounds: int, warm: int, folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds of every round, by way."""
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    async with run_harness(build_script()) as harness, AsyncExitStack() as stack:
        turns = {name: await stack.enter_async_context(way(harness.client, folder)) for name, way in WAYS.items()}
        for number in range(-warm, rounds):
            for name, turn in turns.items():
                milliseconds = await timed(turn)
                if number >= 0:
                    took[name].append(milliseconds)
        taken = sum(entry.kind == "tool_result" and entry.effect for entry in harness.log)
        assert taken == len(WAYS) * WIDTH * (rounds + warm), "a result was lost, or counted twice"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm", type=int, default=2, help="rounds that are not counted")
    parser.add_argument("--json", action="store_true", help="print one line of JSON with the ratios, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        took = anyio.run(measure, options.rounds, options.warm, Path(folder))
    medians = {name: statistics.median(values) for name, values in took.items()}
    fastest = min(value for name, value in medians.items() if name.startswith("gather"))
    ratios = {
        "sdk_over_ours": round(medians["helper"] / medians["ours"], 3),
        "ours_over_gather": round(medians["ours"] / fastest, 3),
    }
    if not options.json:
        print(f"{WIDTH} parallel calls of {SECONDS * 1000:.0f} ms in one turn, {options.rounds} rounds, milliseconds")
        for name, values in took.items():
            print(f"  {name:<24} median {medians[name]:7.1f}   least {min(values):7.1f}   most {max(values):7.1f}")
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
