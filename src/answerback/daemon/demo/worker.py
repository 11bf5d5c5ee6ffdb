"""The worker process of the demonstration: `python -m answerback.daemon.demo.worker`, killed and started by the parent.

It says what happens as JSON lines on stdout. It ends when its stdin does, so that it never outlives its parent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback.daemon.demo.bank import Bank
from answerback.daemon.demo.story import CUSTOMERS, GREETING, LOOKUP_SECONDS, QUESTION, SETTLE
from answerback.handlers.context import ToolContext
from answerback.handlers.policy import Happened, NotHappened
from answerback.handlers.registry import Handlers
from answerback.runtime import Runtime
from answerback.store.sqlite import SQLiteStore

AGENT = {"model": "demo-model"}
ENVIRONMENT = {"type": "none"}
IDLE_LOOK = 0.05
"""Seconds between looks at a session until it is idle."""


def say(kind: str, **facts: Any) -> None:
    """Tell the parent something."""
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


class Work:
    """The two functions the agent calls, the same code for both runtimes.

    Args:
        bank: the bank.
        hold: the order after whose payment the worker stands still, so that the kill falls between the bank's
            payment and the result.
    """

    def __init__(self, bank: Bank, *, hold: str | None) -> None:
        self.bank = bank
        self._hold = hold

    def __repr__(self) -> str:
        return f"<Work with {self.bank!r}, holds {self._hold}>"

    async def get_customer(self, customer_id: str) -> dict[str, str]:
        """Look up a customer by ID."""
        say("entered", subject=customer_id)
        await anyio.sleep(LOOKUP_SECONDS)
        return {"customer_id": customer_id, "name": CUSTOMERS[customer_id]}

    async def refund(self, order_id: str, cents: int, idempotency_key: str | None) -> str:
        """Refund an order."""
        say("entered", subject=order_id)
        refund_id = await self.bank.refund(order_id, cents, idempotency_key=idempotency_key)
        if order_id == self._hold:
            await anyio.sleep_forever()
        return refund_id


def build_handlers(work: Work) -> Handlers:
    """Declare the two functions to the runtime."""
    handlers = Handlers()

    @handlers.tool(effects="read", timeout=10)
    async def get_customer(customer_id: str) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction] # registered
        """Look up a customer by ID."""
        return await work.get_customer(customer_id)

    @handlers.tool(settle=SETTLE)
    async def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
        """Refund an order."""
        return await work.refund(order_id, cents, ctx.idempotency_key)

    @refund.verify
    async def _(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened:  # noqa: ARG001 - the handler's parameters
        found = await work.bank.find(ctx.idempotency_key)
        say("verified", subject=order_id, refund=found.id if found else None)
        return Happened(found.id) if found else NotHappened()

    return handlers


async def answer_with_runtime(client: AsyncOpenAI, work: Work, store: Path) -> None:
    """Answer the calls with this library: the session is found again by its key."""
    warm(client)
    entering = time.time_ns() // 1000
    async with Runtime(client, handlers=build_handlers(work), store=SQLiteStore(store)) as runtime:
        say("started", pid=os.getpid(), at=entering)
        session = await runtime.open("demo", agent=AGENT, environment=ENVIRONMENT, input=QUESTION)
        say("session", id=session.id)
        turn = await session.wait()
        say("done", status=turn.status, text=turn.output_text)


async def answer_with_helper(client: AsyncOpenAI, work: Work, session_id: str | None) -> None:
    """Answer the calls with the official client's own helper.

    It cannot resume a turn, so a second life does what its documentation leaves: cancel, wait for idle, ask again.
    """
    sessions = client.beta.agents.sessions
    agent: Any = {**AGENT, "tools": build_handlers(work).definitions()}
    environment: Any = ENVIRONMENT
    tools: dict[str, Callable[[dict[str, Any]], Any]] = {
        "get_customer": lambda arguments: work.get_customer(**arguments),
        "refund": lambda arguments: work.refund(**arguments, idempotency_key=None),
    }
    say("started", pid=os.getpid(), at=time.time_ns() // 1000)
    if session_id is None:
        # A session without an environment begins with an input, and the helper begins with an idle session.
        session_id = (await sessions.create(agent=agent, environment=environment, input=GREETING)).id
    else:
        await sessions.events.create(session_id, events=[{"type": "agent.session.input.cancel"}])
    while (await sessions.retrieve(session_id)).status != "idle":  # noqa: ASYNC110 - what the helper's user has to do
        await anyio.sleep(IDLE_LOOK)
    say("session", id=session_id)
    async with sessions.stream(session_id, input=QUESTION, tool_handlers=tools) as stream:
        await stream.until_done()
    say("done", status="completed", text="")


def warm(client: AsyncOpenAI) -> None:
    """Import the part of the client that it imports on first use, so that starting up is not timed as reconciling."""
    assert client.beta.agents.sessions.events


async def serve(options: argparse.Namespace) -> None:
    """Do the work of one life."""
    work = Work(Bank(options.ledger), hold=options.hold)
    async with AsyncOpenAI(base_url=options.base_url, api_key="demo") as client:
        if options.store is not None:
            await answer_with_runtime(client, work, options.store)
        else:
            await answer_with_helper(client, work, options.session)


def end_with_parent() -> None:
    """Leave at once when the parent is gone, however it went."""

    def watch() -> None:
        # The file descriptor itself: a thread inside sys.stdin would stop the interpreter from ending.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main() -> None:
    """Read the options the parent gives and work."""
    parser = argparse.ArgumentParser(prog="answerback.daemon.demo.worker")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="with the runtime and this store; without it, with the helper")
    parser.add_argument("--session", help="with the helper: the session of an earlier life")
    parser.add_argument("--hold", help="stand still after the bank paid this order")
    options = parser.parse_args()
    end_with_parent()
    anyio.run(serve, options)


if __name__ == "__main__":
    main()
