"""A socket and a uvicorn on it, driven from code: it says when it is ready, and leaves the signals to whoever runs it.

Apart from the harness, so that other servers of this package need not import it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator

import anyio
import uvicorn

from answerback.errors import ConfigurationError


class TCPServer(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event that says it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    def __repr__(self) -> str:
        return f"<TCPServer {'ready' if self.ready.is_set() else 'starting'}>"

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to whoever runs us."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets=sockets)
        self.ready.set()


def listen(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes a free one.

    Raises:
        ConfigurationError: when the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    listener.setblocking(False)
    return listener
