"""The harness over TCP: uvicorn driven from code, so that it says when it is ready and ends at once.

Plain uvicorn waits for open streams at the end, which an event stream never gives it. Here the streams are told to
end first. uvicorn runs on asyncio only; under trio use the in-process transport or `run_harness(transport="tcp")`,
which serves from a thread of its own.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import uvicorn
import yaml
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from answerback.harness.app import create_app
from answerback.harness.bare import BareBody
from answerback.harness.core import Core
from answerback.harness.errors import ScriptError
from answerback.harness.faults import Fault, read_faults, seeded_faults
from answerback.harness.knobs import read_knobs
from answerback.harness.models.script import Rule, Script
from answerback.harness.models.steps import Say
from answerback.harness.tcp import TCPServer, listen

logger = logging.getLogger("answerback.harness.server")


class AbortableProtocol(H11Protocol):
    """HTTP/1.1 that lets the app break its connection, which ASGI has no word for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        inner: ASGIApp = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**(scope.get("extensions") or {}), "answerback.abort": {"abort": self._abort}}
            await inner(scope, receive, send)

        self.app = app

    def _abort(self) -> None:
        # RST instead of FIN, so that a client sees an error and not the end of a response.
        self.transport.abort()


@asynccontextmanager
async def tcp_server(core: Core, listener: socket.socket) -> AsyncGenerator[str]:
    """Serve a running core on a socket until the block ends; yields the origin, such as `http://127.0.0.1:8000`.

    Must run on asyncio.
    """
    config = uvicorn.Config(
        create_app(core),
        http=AbortableProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=0.4,  # type: ignore[arg-type]  # declared as int, handed to asyncio.wait_for as it is
    )
    server = TCPServer(config)
    bare = BareBody()
    host, port = listener.getsockname()[:2]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.ready.wait()
        with bare:
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        core.drain()
        server.should_exit = True
    bare.reraise()


async def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    state_dir: str | Path | None = None,
    memory: bool = False,
    script: str | Path | None = None,
    knobs: Mapping[str, Any] | None = None,
    faults: str | Path | None = None,
    api_key: str | None = None,
    seed: int = 0,
) -> None:
    """Serve a harness over TCP until SIGTERM or SIGINT; prints one JSON line on stdout when it accepts connections.

    Args:
        host: the address to listen on.
        port: the port; 0 takes a free one.
        state_dir: where state is kept; None keeps it in memory.
        memory: keep state in memory, whatever `state_dir` says.
        script: a JSON or YAML file; without one the model repeats what it was told.
        knobs: knobs by name; text values are read.
        faults: a JSON or YAML file of fault rules, or `seed:N` for a drawn schedule.
        api_key: the only accepted key; None accepts any.
        seed: what every id and random choice is drawn from.

    Raises:
        ConfigurationError: for options, files or an address that cannot be used.
    """
    model = await anyio.to_thread.run_sync(load_script, script)
    rules = await anyio.to_thread.run_sync(load_faults, faults)
    folder = None if memory else state_dir
    core = Core(model, knobs=read_knobs(knobs or {}), faults=rules, seed=seed, folder=folder, api_key=api_key)
    listener = listen(host, port)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with core.running(), tcp_server(core, listener) as origin:
            _announce(origin, folder)
            async for received in signals:
                logger.info("stopping", extra={"signal": signal.Signals(received).name})
                break


def load_script(path: str | Path | None) -> Script:
    """Read a script file; without one, a script that repeats what it was told."""
    if path is None:
        return Script(Rule(steps=(Say("You said: {{ input }}"),)))
    try:
        return Script.from_file(path)
    except OSError as error:
        raise ScriptError(f"cannot read the script {path}: {error.strerror}") from error


def load_faults(source: str | Path | None) -> list[Fault]:
    """Read a file of fault rules, or draw a schedule for `seed:N`."""
    if source is None:
        return []
    text = str(source)
    if text.startswith("seed:"):
        number = text.removeprefix("seed:")
        if not number.lstrip("-").isdigit():
            raise ScriptError(f"{text!r} is no seed; write seed:N with a number")
        return seeded_faults(int(number))
    try:
        return read_faults(yaml.safe_load(Path(source).read_text(encoding="utf-8")))
    except OSError as error:
        raise ScriptError(f"cannot read the fault rules {source}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ScriptError(f"the fault rules are neither JSON nor YAML: {error}") from error


def _announce(origin: str, folder: str | Path | None) -> None:
    line = {
        "base_url": f"{origin}/v1",
        "control_url": f"{origin}/_harness",
        "pid": os.getpid(),
        "state": "memory" if folder is None else str(folder),
    }
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()
