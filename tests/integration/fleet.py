"""Many sessions of one harness, answered by one runtime under virtual time; some are made by other clients."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from answerback import ApiError, Handlers, Runtime
from answerback.actors.api import OpenAIAgentsApi
from answerback.actors.live import LiveSession
from answerback.actors.mailbox import Mailbox
from answerback.actors.session import SessionActor
from answerback.store.base import Store
from answerback.store.memory import MemoryStore
from answerback.testing import Harness, Script, call, rule, run_harness, say
from answerback.wire.records import Page, Session
from integration.virtual_time import run_virtual

PATIENCE = 24 * 3600.0
"""Virtual seconds after which a test that has not ended never will."""
SCRIPT = Script(
    rule("ping", call("ping"), say("pong it is")),
    rule("sync", call("crm_sync"), say("synced")),
    rule("slow", call("slow"), say("at last")),
    rule("hello", say("Hello.")),
)
PER_SESSION = (LiveSession, Mailbox, SessionActor)


class Fleet:
    """A harness, a runtime that answers it, and who else is there."""

    def __init__(self, harness: Harness, runtime: Runtime, ran: list[str]) -> None:
        self.harness = harness
        self.runtime = runtime
        self.ran = ran

    async def open(self, key: str, text: str = "hello") -> str:
        """Open a session of ours, wait for its first turn, and return its id."""
        session = await self.runtime.open(key, agent={"model": "m"}, input=text)
        await session.wait()
        return session.id

    async def elsewhere(self, text: str | None, metadata: Mapping[str, str], *names: str) -> str:
        """Let another client create a session; return its id once its first turn has begun."""
        return await create_elsewhere(self.harness, text, metadata, *names)

    async def say(self, session_id: str, text: str) -> None:
        """Let another client send a message to a session."""
        message: Any = {"role": "user", "content": [{"type": "input_text", "text": text}]}
        event: Any = {"type": "agent.session.input.message", "input": [message]}
        await self.harness.client.beta.agents.sessions.events.create(session_id, events=[event])

    def streams(self, session_id: str | None = None) -> int:
        """Return how many streams the harness serves."""
        return self.harness._core.hub.count(session_id)

    def answers(self, session_id: str) -> list[str]:
        """Return the output of the accepted results of a session, in order."""
        (state,) = [one for one in self.harness.control.state()["sessions"] if one["session"]["id"] == session_id]
        return [one["result"]["output"] for one in state["calls"] if one["result"] is not None]

    def lives(self, session_id: str) -> bool:
        """Whether the session lives in the runtime's process."""
        return self.runtime.peek(session_id) is not None


async def create_elsewhere(harness: Harness, text: str | None, metadata: Mapping[str, str], *names: str) -> str:
    """Create a session as a client would that knows nothing of answerback."""
    nothing: dict[str, Any] = {"type": "object", "properties": {}}
    tools = [{"type": "function", "name": name, "description": "", "parameters": nothing} for name in names]
    agent: Any = {"model": "m", "tools": tools}
    created = await harness.client.beta.agents.sessions.create(
        agent=agent, environment={"type": "none"}, input=text or "hello", metadata=dict(metadata)
    )
    while text is not None and (await harness.client.beta.agents.sessions.retrieve(created.id)).status == "in_progress":
        await anyio.sleep(0.01)
    return created.id


def pinging(ran: list[str]) -> Handlers:
    """Build handlers that note what ran: a quick one and one of five minutes."""
    handlers = Handlers()

    @handlers.tool
    async def ping() -> str:
        """Answer."""
        ran.append("ping")
        return "pong"

    @handlers.tool
    async def slow() -> str:
        """Take five minutes."""
        ran.append("slow")
        await anyio.sleep(300)
        return "slow"

    return handlers


@asynccontextmanager
async def fleet(
    harness: Harness, *, store: Store | None = None, ran: list[str] | None = None, **options: Any
) -> AsyncGenerator[Fleet]:
    """Run a runtime against a harness for the length of a block."""
    ran = [] if ran is None else ran
    clock = harness._core.clock
    async with Runtime(
        harness.client,
        handlers=pinging(ran),
        store=MemoryStore() if store is None else store,
        clock=lambda: int(clock.now() * 1e6),
        **options,
    ) as runtime:
        yield Fleet(harness, runtime, ran)


class Lists:
    """Makes every list of sessions fail, as often as it is told to, and counts how often one was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failures: list[int | None] = []
        self.asked = 0
        sessions = OpenAIAgentsApi.sessions

        async def failing(
            api: OpenAIAgentsApi,
            *,
            metadata: Mapping[str, str],
            agent_id: str | None = None,
            after: str | None = None,
        ) -> Page[Session]:
            self.asked += 1
            if self.failures:
                raise ApiError("planted", status=self.failures.pop())
            return await sessions(api, metadata=metadata, agent_id=agent_id, after=after)

        patch.setattr(OpenAIAgentsApi, "sessions", failing)


def virtually(
    backend: str, body: Callable[[Harness], Awaitable[None]], *, knobs: Mapping[str, Any] | None = None
) -> None:
    """Run a test with a harness in virtual time; its waits cost nothing."""

    async def main() -> None:
        with anyio.fail_after(PATIENCE):
            async with run_harness(SCRIPT, knobs=knobs) as harness:
                await body(harness)

    run_virtual(main, backend)


def counted() -> dict[str, int]:
    """Count what a session that lives here is made of."""
    gc.collect()
    counts = dict.fromkeys((kind.__name__ for kind in PER_SESSION), 0)
    for thing in gc.get_objects():
        # Not isinstance: it asks objects for their class, and lazy ones would import what they stand for.
        if type(thing) in PER_SESSION:
            counts[type(thing).__name__] += 1
    return counts
