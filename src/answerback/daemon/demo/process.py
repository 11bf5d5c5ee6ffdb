"""A worker process, as the parent sees it: what it said so far, and the means to end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from answerback.errors import AnswerbackError
from answerback.harness.bare import BareBody

PATIENCE = 60.0
"""Seconds the demonstration waits for anything; a busy machine needs a few to start Python."""
LAST_WORDS = 600
"""Characters of a worker's stderr that an error shows."""


class DemoError(AnswerbackError):
    """Raised when the demonstration could not be played to its end."""


class Worker:
    """One life of the worker."""

    def __init__(self, process: Process, complaints: Path) -> None:
        self.pid: int = process.pid
        self.said: list[dict[str, Any]] = []
        self.ended = False
        self._process = process
        self._complaints = complaints
        self._news = anyio.Event()

    def __repr__(self) -> str:
        return f"<Worker {self.pid} {'ended' if self.ended else 'running'}, said {len(self.said)}>"

    def entered(self, subject: str) -> int:
        """Return how often the handler for an order or a customer was entered in this life."""
        return sum(one["kind"] == "entered" and one["subject"] == subject for one in self.said)

    def find(self, kind: str) -> dict[str, Any] | None:
        """Return the first thing of this kind the worker said."""
        return next((one for one in self.said if one["kind"] == kind), None)

    async def until(self, kind: str) -> dict[str, Any]:
        """Wait until the worker said something of this kind.

        Raises:
            DemoError: it ended without saying it.
        """
        while True:
            found = self.find(kind)
            if found is not None:
                return found
            if self.ended:
                raise DemoError(f"the worker {self.pid} ended before it said {kind!r}: {self._last_words()}")
            await self._news.wait()

    async def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone and everything it said is read."""
        self._process.send_signal(signal.SIGKILL)
        while not self.ended:
            await self._news.wait()
        await self._process.wait()

    async def listen(self) -> None:
        """Read what the worker says until it ends."""
        assert self._process.stdout is not None
        rest = ""
        async for text in TextReceiveStream(self._process.stdout):
            *lines, rest = (rest + text).split("\n")
            self.said += [json.loads(line) for line in lines]
            self._tell()
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _last_words(self) -> str:
        return self._complaints.read_text("utf-8", "replace").strip()[-LAST_WORDS:] or "it said nothing"


@asynccontextmanager
async def run_worker(folder: Path, arguments: Sequence[str]) -> AsyncGenerator[Worker]:
    """Run a worker for the length of a block; when the block ends, however it does, the worker is gone."""
    complaints = folder / "worker.log"
    with complaints.open("ab") as log:
        process = await anyio.open_process(
            [sys.executable, "-m", "answerback.daemon.demo.worker", *arguments],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # Ctrl-C in the terminal is for the parent, which then ends the worker.
            start_new_session=True,
        )
    worker = Worker(process, complaints)
    bare = BareBody()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.listen)
            with bare:
                yield worker
            tasks.cancel_scope.cancel()
        bare.reraise()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()


def _environment() -> dict[str, str]:
    """Return this process's environment without what would lead the worker's client elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("OPENAI_")}
    # A proxy that is set for the world outside knows nothing of this machine's loopback.
    local = ",".join(filter(None, (kept.get("NO_PROXY") or kept.get("no_proxy"), "127.0.0.1")))
    return {**kept, "NO_PROXY": local, "no_proxy": local}
