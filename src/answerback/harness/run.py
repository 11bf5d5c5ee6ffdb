"""`run_harness`: a harness for the length of a block, in this process, with a client that talks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
import httpx2
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from answerback.harness.app import create_app
from answerback.harness.control import Control
from answerback.harness.core import Core
from answerback.harness.faults import Fault, FaultRules
from answerback.harness.knobs import Knobs, read_knobs
from answerback.harness.models.base import Model
from answerback.harness.models.script import Rule, Script
from answerback.harness.models.steps import Say
from answerback.harness.records import LogEntry
from answerback.harness.server import tcp_server
from answerback.harness.tcp import listen
from answerback.harness.transport import StreamingASGITransport

MEMORY_URL = "http://harness.invalid/v1"
"""The base URL in the same process; the name resolves nowhere, so a client without our transport fails at once."""


class PrimedAsyncOpenAI(AsyncOpenAI):
    """The official client with its one thread saved.

    Its first request finds out the platform in a worker thread, for a header. While a thread runs, trio's virtual
    clock jumps through hours; a client that knows its platform needs none.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._platform = "Unknown"


class HarnessClock:
    """The harness's clock, as a test uses it, whichever thread it lives in."""

    def __init__(self, core: Core, portal: anyio.from_thread.BlockingPortal | None) -> None:
        self._core = core
        self._portal = portal

    def __repr__(self) -> str:
        return f"<HarnessClock {self._core.clock!r}>"

    def advance(self, seconds: float) -> None:
        """Move the harness's time forward; sleeps, gaps and delays of it come due."""
        if self._portal is None:
            self._core.clock.advance(seconds)
        else:
            self._portal.start_task_soon(self._core.clock.advance, seconds)


class Harness:
    """A running harness.

    Attributes:
        client: an official client for it.
        base_url: where it is.
        faults: its fault rules, to add to.
        clock: its clock, to move forward.
        control: its state and script.
        http: the HTTP client under `client`, for requests the official client would not make.
    """

    def __init__(
        self,
        core: Core,
        *,
        client: AsyncOpenAI,
        base_url: str,
        http_client: httpx2.AsyncClient,
        portal: anyio.from_thread.BlockingPortal | None = None,
    ) -> None:
        self.client = client
        self.base_url = base_url
        self.faults: FaultRules = core.faults
        self.clock = HarnessClock(core, portal)
        self.control = Control(core)
        self.http = http_client
        self._core = core

    def __repr__(self) -> str:
        return f"<Harness {self.base_url} {self._core!r}>"

    @property
    def log(self) -> list[LogEntry]:
        """Every accepted or refused input so far, in order."""
        return list(self._core.log.entries)

    def make_client(self, **options: Any) -> AsyncOpenAI:
        """Make another official client for this harness, over the same connections; options are AsyncOpenAI's."""
        defaults = {"api_key": self.client.api_key, "base_url": self.base_url, "http_client": self.http}
        return PrimedAsyncOpenAI(**{**defaults, **options})


@asynccontextmanager
async def run_harness(
    script: Script | Model | None = None,
    *,
    transport: Literal["memory", "tcp"] = "memory",
    knobs: Knobs | Mapping[str, Any] | None = None,
    faults: Iterable[Fault | Mapping[str, Any]] = (),
    seed: int = 0,
    state_dir: str | Path | None = None,
    api_key: str | None = None,
) -> AsyncGenerator[Harness]:
    """Run a harness for the length of a block.

    Args:
        script: what the model says, or a model; without one it repeats what it was told.
        transport: `memory` needs no socket and no thread, so it works under a virtual clock; `tcp` is real HTTP.
        knobs: what differs from the default behaviour.
        faults: fault rules to begin with.
        seed: what every id and random choice is drawn from.
        state_dir: where state is kept; None keeps it in memory.
        api_key: the only accepted key; None accepts any.

    Raises:
        ConfigurationError: for a script, knobs or faults that cannot be used.
    """
    settings = knobs if isinstance(knobs, Knobs) else read_knobs(knobs or {})
    model = script if script is not None else Script(Rule(steps=(Say("You said: {{ input }}"),)))
    core = Core(model, knobs=settings, faults=faults, seed=seed, folder=state_dir, api_key=api_key)
    key = api_key or "sk-harness"
    async with AsyncExitStack() as stack:
        portal: anyio.from_thread.BlockingPortal | None = None
        if transport == "memory":
            await stack.enter_async_context(core.running())
            base_url = MEMORY_URL
            http_client = DefaultAsyncHttpxClient(transport=StreamingASGITransport(create_app(core), tasks=core.tasks))
        else:
            origin, portal = await _serve_tcp(core, stack)
            base_url = f"{origin}/v1"
            http_client = DefaultAsyncHttpxClient()
        await stack.enter_async_context(http_client)
        client = PrimedAsyncOpenAI(api_key=key, base_url=base_url, http_client=http_client)
        yield Harness(core, client=client, base_url=base_url, http_client=http_client, portal=portal)


async def _serve_tcp(core: Core, stack: AsyncExitStack) -> tuple[str, anyio.from_thread.BlockingPortal | None]:
    """Serve on a free port: in this loop on asyncio, from a thread with an asyncio loop elsewhere (uvicorn's only)."""
    listener = listen("127.0.0.1", 0)
    if _on_asyncio():
        await stack.enter_async_context(core.running())
        return await stack.enter_async_context(tcp_server(core, listener)), None

    @asynccontextmanager
    async def serving() -> AsyncGenerator[str]:
        async with core.running(), tcp_server(core, listener) as origin:
            yield origin

    starter = anyio.from_thread.start_blocking_portal(backend="asyncio")
    portal = await anyio.to_thread.run_sync(starter.__enter__)
    stack.push_async_callback(_in_thread, starter.__exit__, None, None, None)
    manager = portal.wrap_async_context_manager(serving())
    origin = await anyio.to_thread.run_sync(manager.__enter__)
    stack.push_async_callback(_in_thread, manager.__exit__, None, None, None)
    return origin, portal


async def _in_thread(function: Any, *arguments: Any) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(function, *arguments)


def _on_asyncio() -> bool:
    # uvicorn needs asyncio's own loop, so this asks asyncio itself; elsewhere no loop of its is running.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
