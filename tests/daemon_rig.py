"""Run `answerback up` as its operator does: a process of its own, an app in a folder, a harness process over TCP."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from answerback.daemon.address import DaemonAddress, address_path, find_daemon
from answerback.daemon.cli import main
from answerback.daemon.remote import Remote
from example_run import LocalApi, local_api

PATIENCE = 60.0
"""Seconds anything here may take on a busy machine."""
CANARY = "c4n4ry-4711-do-not-show"

APP = '''
"""Handlers that a test can hold and that leave a line for every entry."""

import os
import pathlib
import time

import anyio

from answerback import Handlers
from answerback.app import App

here = pathlib.Path(os.environ["RIG"])
handlers = Handlers()
VERSION = "one"


def note(text):
    with open(here / "effects", "a") as file:
        file.write(f"{os.getpid()} {text}\\n")


@handlers.tool(effects="read")
async def look(city: str) -> str:
    """Look out of the window."""
    return f"sunny in {city} ({VERSION})"


@handlers.tool(settle=0)
async def hold(name: str) -> str:
    """Work until somebody lets go."""
    note(f"hold {name}")
    while not (here / f"release-{name}").exists():
        await anyio.sleep(0.01)
    return f"held {name} ({VERSION})"


@handlers.tool
def block(name: str) -> str:
    """Block a thread, whoever asks it to stop."""
    note(f"block {name}")
    while not (here / f"release-{name}").exists():
        time.sleep(0.01)
    return "blocked"


@handlers.tool(needs_approval=True)
async def pay(card: str) -> str:
    """Pay."""
    note("pay")
    return f"paid with {card}"


@handlers.tool
async def fail(card: str) -> str:
    """Fail."""
    raise ValueError(f"no money on {card}")


app = App(handlers=handlers, agent={"model": "any"}, store="calls.db", poll_interval=0.5)
'''

SCRIPT = f"""
rules:
  - when: weather
    steps:
      - call: [{{name: look, arguments: {{city: Oslo}}}}]
      - say: "{{{{ results[0].output }}}}"
  - when: hold
    steps:
      - call: [{{name: hold, arguments: {{name: a}}}}]
      - say: "{{{{ results[0].output }}}}"
  - when: block
    steps:
      - call: [{{name: block, arguments: {{name: a}}}}]
      - say: "{{{{ results[0].output }}}}"
  - when: pay
    steps:
      - call: [{{name: pay, arguments: {{card: {CANARY}}}}}]
      - say: "{{{{ results[0].output }}}}"
  - when: fail
    steps:
      - call: [{{name: fail, arguments: {{card: {CANARY}}}}}]
      - say: "{{{{ results[0].error }}}}"
  - when: forget
    steps:
      - call: [{{name: forget, arguments: {{card: {CANARY}}}}}]
      - say: "Forgotten."
  - steps:
      - say: "You said: {{{{ input }}}}"
"""


class Up:
    """One `answerback up`."""

    def __init__(self, rig: Rig, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._rig = rig
        self._log = log

    def __repr__(self) -> str:
        return f"<Up pid {self.pid}>"

    @property
    def log(self) -> str:
        """What it wrote on stderr so far."""
        return self._log.read_text(encoding="utf-8")

    def line(self) -> dict[str, Any]:
        """Return the next line it prints; an end of its output fails with what it said."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        found: dict[str, Any] = json.loads(line)
        return found

    def served(self) -> Up:
        """Return once it serves."""
        assert "serving" in self.line()
        return self

    def send(self, number: signal.Signals) -> Up:
        """Send it a signal."""
        self.process.send_signal(number)
        return self

    def ended(self) -> int:
        """Return its exit code once it has ended."""
        return self.process.wait(PATIENCE)

    def remote(self) -> Remote:
        """Return a client of its admin."""
        return Remote(self._rig.address())


class Rig:
    """A folder with an app, a harness process, and the daemons started on them."""

    def __init__(self, folder: Path, api: LocalApi, stack: ExitStack) -> None:
        self.folder = folder
        self.api = api
        self.store = folder / "calls.db"
        self._stack = stack
        self._count = 0

    def __repr__(self) -> str:
        return f"<Rig {self.folder} {self.api!r}>"

    @property
    def environment(self) -> dict[str, str]:
        """What every process here gets."""
        return {**self.api.environment, "RIG": str(self.folder), "NO_COLOR": "1"}

    def up(self, *options: str, app: str = "bot:app", environment: dict[str, str] | None = None) -> Up:
        """Start a daemon; it is killed when the test ends, if it still runs."""
        self._count += 1
        log = self.folder / f"up-{self._count}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "answerback", "up", app, "--json", *options],
                cwd=self.folder,
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._stack.callback(_end, process)
        # Whoever waits for something that never comes sees the process end instead.
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        self._stack.callback(watchdog.cancel)
        return Up(self, process, log)

    def run(self, *arguments: str, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end: one that imports an app in a process of its own, the others in this one."""
        environment = {**self.environment, "ANSWERBACK_DB": str(self.store), **environment}
        if arguments[0] == "up" or "--app" in arguments:
            command = [sys.executable, "-m", "answerback", *arguments]
            return subprocess.run(
                command, cwd=self.folder, env=environment, input=typed, capture_output=True, text=True, timeout=PATIENCE
            )
        out, err, before = io.StringIO(), io.StringIO(), sys.stdin
        code: Any = 0
        sys.stdin = io.StringIO(typed)
        try:
            with chdir(self.folder), patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
                main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.stdin = before
        return subprocess.CompletedProcess(arguments, int(code), out.getvalue(), err.getvalue())

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run a command with --json and return what it printed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str, code: int) -> str:
        """Run a command that fails and return its one line."""
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("answerback: ")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def address(self) -> DaemonAddress:
        """Return where the daemon of the store is."""
        found = find_daemon(self.store)
        assert found is not None, address_path(self.store)
        return found

    def release(self, name: str) -> None:
        """Let a held handler go."""
        (self.folder / f"release-{name}").touch()

    def entered(self, entries: Iterator[dict[str, Any]]) -> str:
        """Return the session of the next call that starts, once the first handler is in its body."""
        session_id: str = until(entries, in_state("started"))["session_id"]
        # The START is told of when it is written; the handler notes its entry when that is on disk.
        while not self.effects:
            pass
        return session_id

    @property
    def effects(self) -> list[str]:
        """What the handlers noted: pid and words."""
        file = self.folder / "effects"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@contextmanager
def rig(folder: Path) -> Generator[Rig]:
    """Set up a folder and a harness for the length of a block."""
    (folder / "bot.py").write_text(APP)
    script = folder / "script.yaml"
    script.write_text(SCRIPT)
    with local_api(script) as api, ExitStack() as stack:
        yield Rig(folder, api, stack)


@contextmanager
def following(remote: Remote) -> Generator[Iterator[dict[str, Any]]]:
    """Follow what happens in a daemon, from now on."""
    with remote.follow("/events") as entries:
        yield entries


def until(entries: Iterator[dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first entry that is wanted."""
    for entry in entries:
        if wanted(entry):
            return entry
    raise AssertionError("the daemon ended first")


def in_state(state: str) -> Callable[[dict[str, Any]], bool]:
    """Want a call in this state."""
    return lambda entry: entry.get("state") == state


def in_background(work: Callable[[], Any]) -> threading.Thread:
    """Do something beside the test; what it raises is the daemon's end, which the test sees anyway."""

    def run() -> None:
        try:
            work()
        except Exception:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
    if process.stdout is not None:
        process.stdout.close()
