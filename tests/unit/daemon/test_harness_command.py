"""`answerback harness` as a process: it says where it is, serves, and ends at once."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

COMMAND = (sys.executable, "-m", "answerback", "harness", "--memory")
SESSIONS = {"Authorization": "Bearer k", "OpenAI-Beta": "agents=v1"}


@contextmanager
def _harness(*options: str) -> Generator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_it_prints_where_it_is_serves_and_ends_with_0_on_sigterm() -> None:
    with _harness("--api-key", "k", "--seed", "3") as (process, place):
        assert place["pid"] == process.pid
        assert place["state"] == "memory"
        answer = httpx2.get(f"{place['base_url']}/agents/sessions", headers=SESSIONS)
        refused = httpx2.get(f"{place['base_url']}/agents/sessions", headers=SESSIONS | {"Authorization": "Bearer x"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    assert (answer.status_code, refused.status_code) == (200, 401)
    assert answer.json()["data"] == []


def test_a_port_that_is_taken_exits_3_and_says_which() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [("--set", "no_such_knob=1"), ("--faults", "seed:x")])
def test_an_option_that_makes_no_sense_exits_2(options: tuple[str, str]) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("answerback: ")
