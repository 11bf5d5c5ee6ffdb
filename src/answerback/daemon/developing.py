"""`answerback dev`: a harness in this process, the app in a process of its own, loaded anew when its code changes.

The app's process loads itself (SIGHUP): what runs there finishes on the old code, and code that cannot be imported
stops nothing. The harness, and so the sessions, stay where they are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import click
import msgspec
from anyio.abc import Process

from answerback.daemon.address import address_path
from answerback.daemon.exits import FAILED, NOT_STARTED
from answerback.daemon.output import print_json_line
from answerback.daemon.reload import importable
from answerback.daemon.remote import daemon_of
from answerback.daemon.signals import Listeners, listening
from answerback.daemon.watch import Watch
from answerback.errors import AnswerbackError
from answerback.harness.core import Core
from answerback.harness.knobs import read_knobs
from answerback.harness.server import load_script, tcp_server
from answerback.harness.tcp import listen

LOOK_EVERY = 0.5
"""Seconds between looks at the code."""
LOCAL_KEY = "local"
"""The key of the local API; any is accepted."""


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `dev` is told."""

    app: str
    app_dir: Path
    store: Path
    port: int = 0
    """The harness's port; 0 takes a free one."""
    script: Path | None = None
    state: Path | None = None
    """Where the harness keeps its sessions; None is beside the store."""
    arguments: tuple[str, ...] = ()
    """Options handed on to `up`."""
    as_json: bool = False


class Development:
    """One run of `dev`. Must run on asyncio, in the main thread."""

    def __init__(self, options: DevOptions) -> None:
        self._options = options
        self._watch = Watch(options.app_dir)
        self._child: Process | None = None
        self._origin = ""
        self._signals = 0
        self._changed = anyio.Event()
        self._served = False
        self._late = False
        """Whether the code changed while the app's process was starting."""

    def __repr__(self) -> str:
        return f"<Development {self._options.app} {'running' if self._child is not None else 'waiting'}>"

    async def run(self) -> int:
        """Run until Ctrl-C or SIGTERM, then let the app drain; return its exit code.

        Raises:
            ConfigurationError: for a script, a folder or a port that cannot be used.
        """
        options = self._options
        model = await anyio.to_thread.run_sync(load_script, options.script)
        state = options.state or options.store.with_name(options.store.name + ".harness")
        core = Core(model, knobs=read_knobs({}), folder=state)
        listener = listen("127.0.0.1", options.port)
        stop: Listeners = {signal.SIGINT: self._forward, signal.SIGTERM: self._forward}
        code = FAILED
        with listening(stop):
            async with core.running(), tcp_server(core, listener) as origin:
                self._origin = origin
                async with anyio.create_task_group() as group:
                    group.start_soon(self._look)
                    code = await self._keep_running()
                    group.cancel_scope.cancel()
        return code

    async def _keep_running(self) -> int:
        while True:
            code = await self._run_once()
            if self._late and not self._signals:
                # It failed on code that has changed meanwhile.
                self._late = False
                continue
            if self._signals or not await self._worth_waiting(code):
                return code if code >= 0 else FAILED
            self._say("note", f"the app ended with {code}; it is started again when its code changes")
            self._changed = anyio.Event()
            await self._changed.wait()
            if self._signals:
                return code if code >= 0 else FAILED

    async def _worth_waiting(self, code: int) -> bool:
        """Whether a change of the code may help: it crashed, or cannot be imported as it is."""
        if self._served and code != 0:
            return True
        options = self._options
        return code == NOT_STARTED and await importable(options.app, options.app_dir) is not None

    async def _run_once(self) -> int:
        options = self._options
        command = [sys.executable, "-m", "answerback", "up", options.app, "--json", "--with-parent"]
        command += ["--app-dir", str(options.app_dir), "--db", str(options.store), *options.arguments]
        environment = {**os.environ, "OPENAI_BASE_URL": f"{self._origin}/v1", "OPENAI_API_KEY": LOCAL_KEY}
        self._served = False
        # In a session of its own: Ctrl-C reaches this process, which passes it on once.
        async with await anyio.open_process(
            command, stdin=subprocess.DEVNULL, stderr=None, env=environment, start_new_session=True
        ) as child:
            self._child = child
            async for line in _lines(child):
                await self._heard(json.loads(line))
            code = await child.wait()
            self._child = None
        return code

    async def _heard(self, said: dict[str, Any]) -> None:
        """Show what the app's process says on its output: that it serves, that it has drained."""
        if "serving" in said:
            self._served = True
            if self._late:
                # The code changed while it was being loaded.
                self._late = False
                self._reload()
            try:
                facts = await anyio.to_thread.run_sync(self._facts, said["serving"])
            except AnswerbackError:
                # It has gone on to end or to load itself again; it will say so.
                return
            if self._options.as_json:
                print_json_line({"serving": facts})
            else:
                _banner(facts)
        elif "reloading" in said:
            self._served = False
        elif self._options.as_json:
            print_json_line(said)
        else:
            left = said.get("drained", {})
            self._say("note", f"drained: {left.get('cut_short')} cut short, {left.get('unsent')} unsent")

    def _facts(self, serving: dict[str, Any]) -> dict[str, Any]:
        store = self._options.store
        with daemon_of(store) as daemon:
            health = daemon.get("/healthz")
        return {
            "agents_api": f"{self._origin}/v1",
            "harness": f"{self._origin}/_harness",
            "admin": serving["admin_url"],
            "token_file": str(address_path(store)),
            "store": str(store),
            "store_bytes": store.stat().st_size,
            "sessions": sum(health["sessions"].values()),
            "handlers": health["tools"],
            "watching": str(self._watch.folder),
            "files": len(self._watch),
            "pid": serving["pid"],
        }

    async def _look(self) -> None:
        """Load the app anew when its code changes."""
        while True:
            await anyio.sleep(LOOK_EVERY)
            names = await anyio.to_thread.run_sync(self._watch.changed)
            if not names:
                continue
            self._say("note", f"changed: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}")
            self._reload()
            self._changed.set()

    def _reload(self) -> None:
        if self._child is None:
            return
        if self._served:
            self._child.send_signal(signal.SIGHUP)
        else:
            self._late = True

    def _forward(self) -> None:
        """Pass a wish to end on to the app's process, as often as it comes."""
        self._signals += 1
        if self._child is not None:
            self._child.terminate()
        self._changed.set()

    def _say(self, kind: str, text: str) -> None:
        if self._options.as_json:
            print_json_line({kind: text})
        else:
            click.echo(f"dev: {text}")


async def _lines(child: Process) -> AsyncIterator[str]:
    assert child.stdout is not None
    rest = b""
    async for chunk in child.stdout:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()


def _banner(facts: dict[str, Any]) -> None:
    click.echo(f"  Agents API   {facts['agents_api']}   (control {facts['harness']})")
    click.echo(f"  admin        {facts['admin']}   (token in {facts['token_file']})")
    click.echo(f"  store        {facts['store']}, {facts['store_bytes']} bytes, {facts['sessions']} sessions")
    handlers = ", ".join(f"{one['name']} ({one['effects']})" for one in facts["handlers"])
    click.echo(f"  handlers     {handlers}")
    click.echo(f"  watching     {facts['watching']}, {facts['files']} files")
    click.echo("  talk to it   answerback chat   ·   Ctrl-C drains")
