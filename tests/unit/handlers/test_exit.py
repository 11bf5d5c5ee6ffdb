"""A process whose handlers hang can still exit: shown in processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
import anyio
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.context import ToolContext
from answerback.handlers.execute import Executor
from answerback.handlers.tool import Tool
from answerback.model import CallKey

async def stubborn() -> None:
    while True:
        try:
            await anyio.sleep(3600)
        except anyio.get_cancelled_exc_class():
            pass

def blocked() -> None:
    time.sleep(3600)

async def main() -> None:
    async with Executor(cancel_grace=0.1) as executor:
        for function in (stubborn, blocked):
            context = ToolContext(CallKey("s", "t", "c"), name="x", journal=None, powers=None)
            executor.start(Tool.from_function(function), BoundArguments({}), context)
        await anyio.sleep(0.1)
    print("closed", flush=True)

anyio.run(main, backend=sys.argv[1])
print("left the loop", flush=True)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_stubborn_body_and_a_blocked_thread_do_not_keep_the_process(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout.split("\n")[:2]) == (0, ["closed", "left the loop"]), ended.stderr
