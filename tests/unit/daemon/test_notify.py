"""What a service manager hears, on a socket as systemd makes one."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from answerback.daemon.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def _hear(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().splitlines()


def test_it_says_that_it_is_ready_alive_reloading_and_stopping(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("serving bot:app")
    assert _hear(manager) == ["READY=1", "STATUS=serving bot:app"]
    notifier.alive()
    assert _hear(manager) == ["WATCHDOG=1"]
    notifier.reloading()
    first, second = _hear(manager)
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0
    notifier.stopping("draining")
    assert _hear(manager) == ["STOPPING=1", "STATUS=draining"]


def test_signs_of_life_are_wanted_twice_as_often_as_the_manager_waits() -> None:
    environment = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier(environment).watchdog == 15
    assert Notifier({**environment, "WATCHDOG_PID": "1"}).watchdog is None
    assert Notifier({}).watchdog is None


def test_without_a_manager_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    Notifier({}).ready("x")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("x")
