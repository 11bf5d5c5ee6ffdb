"""Run an example as its reader does: a harness process beside it, two environment variables, a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from source_tree import ROOT

EXAMPLES = ROOT / "examples"
PATIENCE = 60.0
"""Seconds anything here may take on a busy machine."""


class LocalApi:
    """A harness process: where it is, and what it was sent."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self.base_url: str = place["base_url"]
        self._control_url: str = place["control_url"]

    def __repr__(self) -> str:
        return f"<LocalApi {self.base_url}>"

    @property
    def environment(self) -> dict[str, str]:
        """The two variables that point an official client here, and no setting of this machine beside them."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANSWERBACK_"))}
        return {**kept, "OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "local"}

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages the sessions were given after their creation."""
        entries: list[dict[str, Any]] = httpx2.get(f"{self._control_url}/log").json()
        return [entry for entry in entries if entry["kind"] == "message"]

    def sessions(self) -> list[dict[str, Any]]:
        """Return everything known of the sessions."""
        found: list[dict[str, Any]] = httpx2.get(f"{self._control_url}/state").json()["sessions"]
        return found


@contextmanager
def local_api(script: Path = EXAMPLES / "script.yaml") -> Generator[LocalApi]:
    """Run `answerback harness` for the length of a block."""
    command = [sys.executable, "-m", "answerback", "harness", "--memory", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield LocalApi(json.loads(process.stdout.readline()))
        finally:
            process.kill()


def start(program: Path, folder: Path, api: LocalApi, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a program in a folder of its own; its output is piped, warnings are errors."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(program), *arguments],
        cwd=folder,
        env={**api.environment, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], typed: str = "") -> str:
    """Let a program run to its end and return what it printed; a failure shows what it said."""
    with process:
        try:
            printed, said = process.communicate(typed, timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, said
    return printed


def kill_after(process: subprocess.Popen[str], seconds: float) -> None:
    """Kill a program that is still running after so many seconds."""
    with process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
