"""Tell a service manager how we are: systemd's notification socket (sd_notify(3)), one datagram a message."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends to `NOTIFY_SOCKET` of the environment, or nowhere where there is none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environment.get("WATCHDOG_USEC", "") if ours else ""
        self.watchdog: float | None = int(microseconds) / 2e6 if microseconds.isdigit() else None
        """Seconds between signs of life (half of what the manager allows), or None when it wants none."""

    def __repr__(self) -> str:
        return f"<Notifier {'on' if self._path else 'off'}>"

    def ready(self, status: str) -> None:
        """Say that everything runs."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say in one line what is going on."""
        self._send(f"STATUS={status}")

    def alive(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Say that the same process starts anew; `ready` ends it (Type=notify-reload wants the monotonic time)."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that we are about to end."""
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        # A manager that does not listen is no reason to stop serving.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.connect(address)
            link.send("\n".join(lines).encode())
