"""`<db>.daemon.json`: where the daemon of a store listens, and the token that opens it; readable by its owner only.

The file is a hint, the lock is the truth: a file whose writer no longer holds the store's lock is a left-over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

import msgspec

from answerback.store.reader import lock_owner


class DaemonAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a command needs to reach the daemon of a store."""

    url: str
    token: str
    pid: int
    host: str
    since: str
    """ISO 8601, UTC."""
    version: str
    app: str
    """The import string it serves."""

    def __repr__(self) -> str:
        return f"<DaemonAddress {self.url} pid {self.pid}>"


def address_path(store: Path) -> Path:
    """Return where the address of a store's daemon lies: beside the file itself, not beside a link to it."""
    real = Path(os.path.realpath(store))
    return real.with_name(real.name + ".daemon.json")


def new_token() -> str:
    """Return a token nobody can guess."""
    return secrets.token_urlsafe(32)


def publish(store: Path, address: DaemonAddress) -> None:
    """Write the address whole or not at all, mode 0600 from its first byte. Blocks.

    Raises:
        OSError: the folder cannot be written.
    """
    place = address_path(store)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(address) + b"\n")
    draft.replace(place)


def withdraw(store: Path, address: DaemonAddress) -> None:
    """Remove the address, if it is still ours: a successor may have written its own. Blocks."""
    if _read(store) == address:
        with contextlib.suppress(FileNotFoundError):
            address_path(store).unlink()


def find_daemon(store: Path) -> DaemonAddress | None:
    """Return the address of the daemon that holds the store, or None. Blocks briefly.

    Raises:
        StoreUnavailableError: the lock file may not be read.
    """
    address = _read(store)
    owner = lock_owner(store) if address is not None else None
    if address is None or owner is None:
        return None
    ours = (owner.get("pid"), owner.get("host")) == (address.pid, address.host)
    return address if ours else None


def host_name() -> str:
    """Return this machine's name, as the lock file has it."""
    return socket.gethostname()


def _read(store: Path) -> DaemonAddress | None:
    try:
        return msgspec.json.decode(address_path(store).read_bytes(), type=DaemonAddress)
    except (OSError, msgspec.MsgspecError):
        return None
