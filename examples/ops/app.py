"""What the daemon of this folder serves: `answerback up app:app`. Put your own functions here."""

from __future__ import annotations

import os

from answerback import App, Discover, Handlers, ToolError

STOCK = {"lamp": 12, "kettle": 3}

handlers = Handlers()


@handlers.tool(effects="read", timeout=10)
async def stock(item: str) -> int:
    """Tell how many of an item are in stock."""
    if item not in STOCK:
        raise ToolError(f"There is no item {item}.")
    return STOCK[item]


app = App(
    handlers=handlers,
    agent={"model": os.environ.get("BOT_MODEL", "gpt-5.5")},
    # Sessions that others create with this metadata are answered here; without discover= none of them are.
    discover=Discover(metadata={"answered_by": "shop"}, interval=15),
)
