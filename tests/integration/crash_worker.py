"""A worker that is killed between an effect and its result; run by `test_case_crash_window` as a program.

Arguments, as one JSON object: base_url, store, effects (a file), declared (once, idempotent, verify, hold), backend.
It ends by SIGKILL when the effects file gets its first line. The test builds the same handlers for the life after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback import Handlers, Happened, NotHappened, Runtime, SQLiteStore, ToolContext


def note(path: str, line: str) -> int:
    """Append a line to a file on stable storage; return how many lines it has now."""
    with Path(path).open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return len(Path(path).read_text().splitlines())


def build(options: dict[str, Any]) -> Handlers:
    """Declare the tool as the test wants it."""
    declared, effects = options["declared"], options["effects"]
    handlers = Handlers()

    @handlers.tool(
        settle=0.0,
        effects="idempotent" if declared == "idempotent" else "once",
        on_interrupted="hold" if declared == "hold" else None,
    )
    def post_letter(context: ToolContext, to: str) -> str:
        """Post a letter, and die on the way back the first time."""
        if note(effects, f"{to} {context.idempotency_key} {context.attempt}") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "posted"

    if declared == "verify":

        @post_letter.verify
        def _(to: str) -> Happened[str] | NotHappened:
            note(f"{effects}.asked", to)
            posted = any(line.startswith(to) for line in Path(effects).read_text().splitlines())
            return Happened("posted before") if posted else NotHappened()

    return handlers


async def main(options: dict[str, Any]) -> None:
    """Answer one session until it is idle."""
    async with (
        AsyncOpenAI(api_key="sk-test", base_url=options["base_url"]) as client,
        Runtime(client, handlers=build(options), store=SQLiteStore(options["store"])) as runtime,
    ):
        session = await runtime.attach("sess_1")
        await session.wait()


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(sys.argv[1])
    anyio.run(main, given, backend=given["backend"])
