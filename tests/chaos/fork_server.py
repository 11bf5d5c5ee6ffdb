"""Processes that cost milliseconds: everything is imported once, and each worker is a fork of that.

Forking is safe here because it happens before there is anything a fork breaks: the server and its lanes have no event
loop, no thread, no open database, no client; they import modules, and then only read, fork and wait. `_fork` checks
it. What a child inherits is module code and three descriptors; whatever it opens is its own.

Run as `python -m chaos.fork_server FD...`: each descriptor is a socket of its own lane, on which requests and answers
go as JSON lines, one at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

WATCHDOG = 60
"""Seconds after which a worker is ended by SIGALRM: a hang shows as that signal."""
POLL = 0.002
"""Seconds between looks at a child that is to be killed at a given time."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One worker to run."""

    program: str
    """A key of `PROGRAMS`."""
    payload: msgspec.Raw
    output: str
    """The file that gets its stdout and stderr."""
    kill_after: float | None = None
    """Seconds until SIGKILL, unless it ended before."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended."""

    signal: int
    """The signal that ended it; 0 for none."""
    code: int
    """Its exit code, when there was no signal."""
    seconds: float


Program = Callable[[bytes], None]


def serve(descriptors: list[int]) -> None:
    """Import everything, fork one lane per descriptor, and wait until all lanes are gone."""
    programs = _programs()
    lanes: list[int] = []
    for descriptor in descriptors:
        pid = _fork()
        if pid == 0:
            for other in descriptors:
                if other != descriptor:
                    os.close(other)
            _lane(socket.socket(fileno=descriptor), programs)
            os._exit(0)
        lanes.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    for pid in lanes:
        os.waitpid(pid, 0)


def _programs() -> dict[str, Program]:
    # Imported here, in the server only: whoever talks to it needs none of it.
    from chaos import kill_worker, script_worker, stale_worker

    # What else a worker would load when it gets to it: the loops, and half a second of the client's resources.
    for name in (
        "trio",
        "anyio._backends._asyncio",
        "anyio._backends._trio",
        "httpcore2",
        "openai.resources.beta.beta",
    ):
        importlib.import_module(name)
    return {"kill": kill_worker.run, "script": script_worker.run, "stale": stale_worker.run}


def _lane(connection: socket.socket, programs: dict[str, Program]) -> None:
    with connection, connection.makefile("rb") as requests:
        for text in requests:
            request = msgspec.json.decode(text, type=Request)
            started = time.monotonic()
            pid = _fork()
            if pid == 0:
                connection.close()
                _child(programs[request.program], request)
            status = _wait(pid, request.kill_after)
            code = os.waitstatus_to_exitcode(status)
            ended = Ended(signal=max(0, -code), code=max(0, code), seconds=time.monotonic() - started)
            connection.sendall(msgspec.json.encode(ended) + b"\n")


def _fork() -> int:
    if threading.active_count() != 1:
        raise RuntimeError("a thread is running: forking now could copy a lock somebody holds")
    return os.fork()


def _wait(pid: int, kill_after: float | None) -> int:
    if kill_after is None:
        return os.waitpid(pid, 0)[1]
    until = time.monotonic() + kill_after
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= until:
            os.kill(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1]
        time.sleep(POLL)


def _child(program: Program, request: Request) -> None:
    """Run the worker and end the process without returning into the server's code."""
    code = 1
    try:
        output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm(WATCHDOG)
        program(bytes(request.payload))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Lane:
    """One lane of a running server, seen from the tests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")

    def __repr__(self) -> str:
        return f"<Lane {self._connection.fileno()}>"

    def run(self, program: str, payload: bytes, *, output: Path, kill_after: float | None = None) -> Ended:
        """Run one worker and return how it ended; blocks."""
        request = Request(program=program, payload=msgspec.Raw(payload), output=str(output), kill_after=kill_after)
        self._connection.sendall(msgspec.json.encode(request) + b"\n")
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("the fork server ended; its stderr says why")
        return msgspec.json.decode(answer, type=Ended)

    def close(self) -> None:
        """End the lane."""
        self._answers.close()
        self._connection.close()


@contextlib.contextmanager
def fork_server(lanes: int) -> Generator[list[Lane]]:
    """Run a server for the length of a block; yields its lanes."""
    pairs = [socket.socketpair() for _ in range(lanes)]
    theirs = [pair[1].fileno() for pair in pairs]
    source = Path(__file__).parents[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "chaos.fork_server", *map(str, theirs)],
        pass_fds=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])])},
        stdin=subprocess.DEVNULL,
    )
    for _, their in pairs:
        their.close()
    ours = [Lane(mine) for mine, _ in pairs]
    try:
        yield ours
    finally:
        for lane in ours:
            lane.close()
        server.wait(timeout=WATCHDOG)


if __name__ == "__main__":
    serve([int(argument) for argument in sys.argv[1:]])
