"""A bot as its reader starts it: a process of its own, beside a harness, in a folder that outlives it."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from example_run import EXAMPLES, PATIENCE, LocalApi, start

BOTS = EXAMPLES / "bots"
SCRIPT = BOTS / "script.yaml"


class Bot:
    """A running bot.

    Attributes:
        greeting: the first line it printed.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.greeting = process.stdout.readline().strip()
        assert self.greeting, process.communicate(timeout=PATIENCE)[1]

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def failed(self) -> str:
        """Wait until it has ended by itself and badly; return what it said."""
        _, said = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 1, said
        return said

    def stop(self, ends: int) -> None:
        """Ask it to stop, and see that it ends as it should."""
        self._process.terminate()
        _, said = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == ends, said


@contextmanager
def bot(name: str, folder: Path, api: LocalApi, environment: Mapping[str, str], *, ends: int = 0) -> Generator[Bot]:
    """Run a bot for the length of a block; a block that did not kill it stops it, and it ends with this code."""
    settings = {"NO_PROXY": "127.0.0.1", "SHOP_SECONDS": "0.3", **environment}
    with start(BOTS / f"{name}.py", folder, api, **settings) as process:
        try:
            running = Bot(process)
            yield running
            if process.poll() is None:
                running.stop(ends)
        finally:
            process.kill()


@contextmanager
def locked(database: Path) -> Generator[None]:
    """Keep everybody else from writing to a bot's file for the length of a block, as a full disk would."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()


def turns(api: LocalApi) -> int:
    """Return how many turns the agent has made."""
    return sum(len(session["turns"]) for session in api.sessions())


def refunds(folder: Path) -> list[str]:
    """Return the lines of the shop's ledger."""
    ledger = folder / "refunds.txt"
    return ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
