"""Several calls at once, and what may be said about each: read, once with a verify hook, once held for a person.

Kill it at any moment and run it again. A refund that was cut short is looked up at the bank. Whether a letter that
was cut short left the house nobody but a person can tell: the call is held, and the person is asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import anyio.to_thread
from bank import Bank
from openai import AsyncOpenAI

from answerback import (
    CallRecord,
    CallState,
    Handlers,
    Happened,
    NotHappened,
    Retry,
    RetryLater,
    Runtime,
    SQLiteStore,
    ToolContext,
    ToolError,
    Unknown,
)

FOLDER = Path(os.environ.get("REFUNDS_FOLDER", "."))
ORDERS = {"A-17": 1250, "A-18": 9900}

bank = Bank(FOLDER / "ledger.jsonl")
letters = FOLDER / "letters.txt"
handlers = Handlers()


@handlers.tool(effects="read", timeout=10, retry=Retry(attempts=3))
async def get_order(order_id: str) -> dict[str, str | int]:
    """Look up an order by ID."""
    if order_id not in ORDERS:
        # These words reach the model. The text of any other exception stays in this process.
        raise ToolError(f"There is no order {order_id}.")
    return {"order_id": order_id, "cents": ORDERS[order_id]}


@handlers.tool(settle=2, max_concurrency=4)
async def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
    """Refund an order."""
    if cents > 100_000:
        # Nothing was done yet, so starting again later is safe.
        raise RetryLater(after=60)
    ctx.progress(f"paying {order_id}")
    return await bank.refund(order_id, cents, idempotency_key=ctx.idempotency_key)


@refund.verify
async def _(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened | Unknown:
    try:
        found = await bank.find(ctx.idempotency_key)
    except OSError:
        return Unknown()  # asked again later, until the deadline
    return Happened(found.id) if found else NotHappened()


@handlers.tool(on_interrupted="hold")
async def post_letter(order_id: str) -> str:
    """Post a letter that confirms a refund."""
    with letters.open("a", encoding="utf-8") as file:
        file.write(f"{order_id}\n")
    await anyio.sleep(0.2)  # to the letter box and back
    return "posted"


async def ask_the_clerk(runtime: Runtime) -> None:
    """Put every letter nobody can tell about to a person, and decide as they say."""
    while True:
        for call in await runtime.calls(states=[CallState.INDETERMINATE]):
            if call.name == post_letter.name:
                await decide(runtime, call)
        await anyio.sleep(0.1)


async def decide(runtime: Runtime, call: CallRecord) -> None:
    order_id = json.loads(call.arguments)["order_id"]
    question = f"Call {call.public_id[:12]} was cut short. Is the letter about {order_id} posted? [y/n]\n"
    answer = await anyio.to_thread.run_sync(input, question, abandon_on_cancel=True)
    await runtime.decide(call.public_id, Happened("posted") if answer.strip() == "y" else NotHappened())


async def main() -> None:
    store = SQLiteStore(FOLDER / "calls.db")
    async with (
        AsyncOpenAI() as client,
        Runtime(client, handlers=handlers, store=store) as runtime,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ask_the_clerk, runtime)
        session = await runtime.open("refunds-of-today", agent={"model": "gpt-5.5"}, input="Refund today's orders.")
        turn = await session.wait()
        for call in turn.calls:
            print(f"{call.public_id[:12]}  {call.name:<12} {call.outcome_kind}")
        print(turn.output_text)
        tasks.cancel_scope.cancel()


anyio.run(main)
