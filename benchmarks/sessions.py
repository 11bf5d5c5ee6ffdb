"""A thousand open sessions in one process: what a POST waits for, and what an open and a passivated session cost.

The harness runs in a process of its own, over TCP. Two runtimes follow the same sessions, in turns: one without
streams, one with `max_streams` of them, so that all others wait for a slot. Each answers the same number of calls; what
is timed is the POST of a result, from handing it to the official client to its answer.

Memory is the RSS of this process: what a thousand open sessions add, and what is left when all are passivated, beside
a runtime without any (an allocator keeps pages, so this is what new work cannot use again).

    python benchmarks/sessions.py [--sessions 1000] [--streams 100] [--calls 100] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback import Handlers, Runtime, SQLiteStore
from answerback.actors.api import OpenAIAgentsApi

GOAL = 1.2
SCRIPT = """
rules:
  - when: ping
    steps: [{call: {name: ping, arguments: {}}}, {say: pong}]
  - steps: [{say: Hello.}]
"""
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "ping",
    "description": "",
    "parameters": {"type": "object", "properties": {}},
}
Took = dict[str, list[float]]
"""Milliseconds of every POST of a result, by the number of streams it was beside."""


class Posts:
    """The POSTs of the official client underneath the runtime, timed."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self._post = OpenAIAgentsApi.post

    @contextmanager
    def timed(self) -> Generator[None]:
        """Time every POST of results for the length of a block."""
        original, took = self._post, self.took

        async def post(api: OpenAIAgentsApi, session_id: str, body: bytes, *, key: str) -> None:
            began = time.perf_counter()
            await original(api, session_id, body, key=key)
            took.append((time.perf_counter() - began) * 1000)

        OpenAIAgentsApi.post = post  # type: ignore[method-assign]
        try:
            yield
        finally:
            OpenAIAgentsApi.post = original  # type: ignore[method-assign]


def rss() -> float:
    """Return the resident memory of this process, in KiB."""
    gc.collect()
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return float(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


def sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(link.readlink()).startswith("socket:")
    return count


@contextmanager
def harness(folder: Path) -> Generator[str]:
    """Run a harness in a process of its own; yield its base URL."""
    script = folder / "script.yaml"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "answerback", "harness", "--memory", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["base_url"])
        process.terminate()


async def create(client: AsyncOpenAI, count: int) -> list[str]:
    """Create sessions whose first turn is over soon."""
    ids: list[str] = []
    limiter = anyio.CapacityLimiter(8)
    agent: Any = {"model": "benchmark", "tools": [TOOL]}

    async def one() -> None:
        async with limiter:
            environment: Any = {"type": "none"}
            created = await client.beta.agents.sessions.create(agent=agent, environment=environment, input="hello")
            ids.append(created.id)

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
    return ids


@asynccontextmanager
async def following(
    client: AsyncOpenAI, ids: list[str], path: Path, *, streams: int, passivate_after: float = 3600.0
) -> AsyncGenerator[Runtime]:
    """Follow all the sessions, until each was read once and the streams there may be are open."""
    handlers = Handlers()

    @handlers.tool
    async def ping() -> str:
        """Answer."""
        return "pong"

    async with Runtime(
        client,
        handlers=handlers,
        store=SQLiteStore(path),
        max_streams=streams,
        passivate_after=passivate_after,
        poll_interval=600.0,
    ) as runtime:
        for session_id in ids:
            await runtime.attach(session_id)
        while not settled(runtime, min(streams, len(ids))):  # noqa: ASYNC110 - before anything is timed
            await anyio.sleep(0.1)
        yield runtime


def settled(runtime: Runtime, streams: int) -> bool:
    status = runtime.status()
    return status.streams >= streams and all(session.status == "idle" for session in status.sessions)


async def answer(runtime: Runtime, client: AsyncOpenAI, ids: list[str]) -> list[float]:
    """Let a call come up in each of these sessions, one after the other, and time the POSTs of their results."""
    posts = Posts()
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": "ping"}]}
    event: Any = {"type": "agent.session.input.message", "input": [message]}
    with posts.timed():
        for session_id in ids:
            before = len(posts.took)
            await client.beta.agents.sessions.events.create(session_id, events=[event])
            while len(posts.took) == before:
                runtime.wake(session_id)
                await anyio.sleep(0.02)
    return posts.took


async def measure(options: argparse.Namespace, folder: Path, base_url: str) -> tuple[Took, dict[str, Any]]:
    """Return the POSTs' times, and the figures of memory and sockets."""
    took: Took = {"none": [], "bounded": []}
    figures: dict[str, Any] = {}
    async with AsyncOpenAI(api_key="sk-benchmark", base_url=base_url, max_retries=0) as client:
        ids = await create(client, options.sessions)
        # What is paid once, imports and pools, is paid here.
        async with following(client, ids[:20], folder / "warm.db", streams=options.streams):
            pass
        before = rss()
        async with following(client, ids, folder / "open.db", streams=options.streams) as runtime:
            figures["kib_per_open_session"] = round((rss() - before) / len(ids), 1)
            figures["sockets_open"] = sockets()
        # Spread over those with and without a stream.
        chosen = ids[:: max(1, len(ids) // options.calls)][: options.calls]
        for number in range(options.rounds):
            for name, streams in (("none", 0), ("bounded", options.streams)):
                async with following(client, ids, folder / f"{name}{number}.db", streams=streams) as runtime:
                    figures[f"streams_{name}"] = runtime.status().streams
                    took[name] += await answer(runtime, client, chosen)
        await passivated(client, ids, folder, options.streams, figures)
    return took, figures


async def passivated(client: AsyncOpenAI, ids: list[str], folder: Path, streams: int, figures: dict[str, Any]) -> None:
    """Tell what the sessions cost once all of them are passivated, beside a runtime that never had any."""
    async with following(client, [], folder / "empty.db", streams=streams):
        empty, figures["sockets_without_sessions"] = rss(), sockets()
    async with following(client, ids, folder / "rested.db", streams=streams, passivate_after=5.0) as runtime:
        while runtime.status().sessions:  # noqa: ASYNC110 - nothing is timed
            await anyio.sleep(0.1)
        figures["passivated"] = runtime.status().passivated
        figures["kib_per_passivated_session"] = round(max(0.0, rss() - empty) / len(ids), 2)
        figures["sockets_passivated"] = sockets()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--calls", type=int, default=100, help="calls answered in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one line of JSON with the figures, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, harness(Path(name)) as base_url:
        took, figures = anyio.run(measure, options, Path(name), base_url)
    medians = {name: statistics.median(values) for name, values in took.items()}
    if not options.json:
        print(
            f"{options.sessions} open sessions, {options.rounds} rounds of {options.calls} calls; milliseconds a POST"
        )
        for name, values in took.items():
            streams = figures[f"streams_{name}"]
            print(f"  {streams:4} streams   median {medians[name]:6.2f}   most {max(values):7.2f}")
    figures["post_p50_bounded_over_none"] = round(medians["bounded"] / medians["none"], 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
