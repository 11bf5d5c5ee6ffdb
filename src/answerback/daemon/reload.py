"""Ending this process, or starting it anew with other code, which is imported elsewhere first: a slip stops nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import anyio

_CHECK = (
    "import sys\n"
    "from pathlib import Path\n"
    "from answerback.daemon.apps import load_app\n"
    "from answerback.errors import AnswerbackError\n"
    "try:\n"
    "    load_app(sys.argv[1], app_dir=Path(sys.argv[2]))\n"
    "except AnswerbackError as error:\n"
    "    sys.exit(str(error))\n"
)


async def importable(spec: str, app_dir: Path) -> str | None:
    """Return None when the app can be imported now, else why not in one line; `app_dir` is an absolute path."""
    done = await anyio.run_process(
        [sys.executable, "-c", _CHECK, spec, str(app_dir)],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"importing {spec} ended with {done.returncode}"


def leave(code: int) -> NoReturn:
    """End the process at once: everything is closed, and taking the interpreter apart would take its time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start_again() -> NoReturn:
    """Replace this process by the program as it was started: the same pid, arguments and environment, new code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # What a process ignores, the program it becomes ignores too; the others it would ignore anyway at first.
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "answerback", *sys.argv[1:]])  # noqa: S606 - this program
