"""What the bots can do: a shop that looks up an order, packs it, and refunds it when a person agrees.

The ledger of refunds is a file, so that everybody can count them.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.to_thread

from answerback import Handlers, Happened, NotHappened, ToolContext, ToolError

ORDERS = {"A-17": ("lamp", "cable", "bulb"), "A-18": ("kettle",)}

handlers = Handlers()


def ledger() -> Path:
    """Return the file of refunds: SHOP_LEDGER, or ./refunds.txt."""
    return Path(os.environ.get("SHOP_LEDGER", "refunds.txt"))


def pause() -> float:
    """Return how long the shop takes for one step, in seconds: SHOP_SECONDS, or 1."""
    return float(os.environ.get("SHOP_SECONDS", "1"))


@handlers.tool(effects="read", timeout=10)
async def find_order(order_id: str) -> list[str]:
    """Look up what an order contains."""
    if order_id not in ORDERS:
        raise ToolError(f"There is no order {order_id}.")
    return list(ORDERS[order_id])


@handlers.tool(effects="idempotent")
async def pack_order(ctx: ToolContext, order_id: str) -> str:
    """Pack an order, piece by piece."""
    pieces = await find_order(order_id)
    for number, piece in enumerate(pieces, start=1):
        # Shown in the chat while the call runs; nothing of it is stored or sent to the agent.
        ctx.progress(f"packing {piece} ({number} of {len(pieces)})")
        await anyio.sleep(pause())
    return f"{len(pieces)} pieces packed"


@handlers.tool(needs_approval=True, settle=2)
async def refund(ctx: ToolContext, order_id: str, cents: int) -> str:
    """Refund an order."""
    await anyio.to_thread.run_sync(_write, f"{ctx.idempotency_key} {order_id} {cents}")
    ctx.progress(f"{order_id}: waiting for the bank")
    await anyio.sleep(pause())
    return f"{order_id} refunded"


@refund.verify
async def _(ctx: ToolContext, order_id: str, cents: int) -> Happened[str] | NotHappened:
    lines = await anyio.to_thread.run_sync(_read)
    paid = any(line.startswith(ctx.idempotency_key) for line in lines)
    return Happened(f"{order_id} refunded") if paid else NotHappened()


def _write(line: str) -> None:
    with ledger().open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def _read() -> list[str]:
    return ledger().read_text(encoding="utf-8").splitlines() if ledger().exists() else []
