"""Run a script as `python FILE` would, in a process that has its imports already."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import msgspec


class ScriptRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which script, where and with what environment."""

    script: str
    folder: str
    """The working directory."""
    environment: dict[str, str]


def run(payload: bytes) -> None:
    """Run the script to its end, or until it is killed."""
    told = msgspec.json.decode(payload, type=ScriptRun)
    os.environ.update(told.environment)
    os.chdir(told.folder)
    sys.argv = [told.script]
    sys.path.insert(0, str(Path(told.script).parent))
    runpy.run_path(told.script, run_name="__main__")
