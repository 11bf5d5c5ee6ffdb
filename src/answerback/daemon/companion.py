"""A daemon for as long as a command runs: the one that is there already, else one that is started and ended here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from answerback.daemon.address import find_daemon
from answerback.daemon.exits import StartError
from answerback.daemon.remote import Remote, daemon_of

PATIENCE = 60.0
"""Seconds a daemon we started gets to drain; its own timeout is shorter."""


@contextmanager
def serving_for(store: Path, *, app: str | None, app_dir: Path) -> Generator[Remote]:
    """Yield the daemon of a store, started with `app` for the length of the block if there is none.

    Raises:
        StartError: there is none and no app, or it could not be started.
        StoreLockedError: another process has the store.
    """
    if app is None or find_daemon(store) is not None:
        with daemon_of(store) as daemon:
            yield daemon
        return
    with _started(store, app, app_dir), daemon_of(store) as daemon:
        yield daemon


@contextmanager
def _started(store: Path, app: str, app_dir: Path) -> Generator[None]:
    command = [sys.executable, "-m", "answerback", "up", app, "--app-dir", str(app_dir), "--db", str(store)]
    command += ["--json", "--with-parent", "--log-level", "warning"]
    # In a session of its own: Ctrl-C at the prompt is ours, not its.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603 - this program
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line or "serving" not in json.loads(line):
                raise StartError(f"{app} could not be served; it said why above")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
