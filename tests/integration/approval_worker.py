"""A worker whose calls wait for a person; run by `test_approvals` as a program that is killed while they wait.

Arguments, as one JSON object: base_url, store, effects (a file), backend. It prints one line when all calls wait.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback import Handlers, Runtime, SQLiteStore

CALLS = 2


def build(effects: str) -> Handlers:
    """Declare the tool whose every call needs a person's yes."""
    handlers = Handlers()

    @handlers.tool(needs_approval=True)
    def pay_out(invoice: str, cents: int) -> str:
        """Pay an invoice."""
        with Path(effects).open("a") as file:
            file.write(f"{invoice} {cents}\n")
        return f"paid {invoice}"

    return handlers


async def main(options: dict[str, Any]) -> None:
    """Follow one session for ever."""
    async with (
        AsyncOpenAI(api_key="sk-test", base_url=options["base_url"]) as client,
        Runtime(client, handlers=build(options["effects"]), store=SQLiteStore(options["store"])) as runtime,
    ):
        session = await runtime.attach("sess_1")
        async with session.events() as events:
            while len(await session.pending_approvals()) < CALLS:
                with anyio.move_on_after(0.05):
                    await events.receive()
        print("waiting", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[1])
    anyio.run(main, given, backend=given["backend"])
