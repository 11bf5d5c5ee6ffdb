"""The example of the README: refund an order, once, whatever happens to this process. Kill it and run it again."""

from __future__ import annotations

import os

import anyio
from bank import Bank
from openai import AsyncOpenAI

from answerback import Handlers, Happened, NotHappened, Runtime, SQLiteStore, ToolContext

bank = Bank(os.environ.get("BANK_LEDGER", "ledger.jsonl"))
customers = {"c-1": {"name": "Ada", "order_id": "7"}}
handlers = Handlers()


@handlers.tool(effects="read", timeout=10)  # may run again freely
async def get_customer(customer_id: str) -> dict[str, str]:
    """Look up a customer by ID."""
    return customers[customer_id]


@handlers.tool(settle=2)  # effects="once" is the default: never started twice by itself
async def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
    """Refund an order."""
    return await bank.refund(order_id, cents, idempotency_key=ctx.idempotency_key)


@refund.verify  # asked after a crash, at the earliest `settle` seconds after the start
async def _(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened:
    found = await bank.find(ctx.idempotency_key)
    return Happened(found.id) if found else NotHappened()


async def main() -> None:
    store = SQLiteStore(os.environ.get("CALLS_DB", "calls.db"))
    async with AsyncOpenAI() as client, Runtime(client, handlers=handlers, store=store) as runtime:
        session = await runtime.open("ticket-4711", agent={"model": "gpt-5.5"}, input="Refund order 7, please.")
        turn = await session.wait()
        print(turn.output_text)


anyio.run(main)
