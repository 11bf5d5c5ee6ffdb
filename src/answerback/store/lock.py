"""One writer per file: a POSIX lock on `<db>.lock`, which also remembers who had it and the newest incarnation.

`lockf`, not `flock`: the latter stays held by a forked child after its owner was killed. But POSIX locks belong to the
process: they do not refuse a second opener in the same process, and closing any descriptor of the file gives them up.
So the file is opened once, and before that this process's own descriptors are searched for it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from answerback.errors import StoreLockedError, StoreUnavailableError

_SIZE = 512
"""The record fills one disk sector, padded with spaces, so that it is written whole or not at all."""
_ATTEMPTS = 5
_BETWEEN = 0.02
"""Seconds between attempts: somebody who only asks who the owner is holds a shared lock for microseconds."""
_DESCRIPTORS = Path("/dev/fd")

# Looking for an own descriptor and opening one must not interleave between threads of one process.
_LOOK_AND_TAKE = threading.Lock()


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the lock file says. It outlives its owner: the incarnation in it is the witness of a roll-back."""

    host: str
    pid: int
    since: str
    """ISO 8601, UTC."""
    incarnation: int

    def __str__(self) -> str:
        return f"host {self.host} pid {self.pid} since {self.since}"


def lock_path(path: Path) -> Path:
    """Return where the lock of a store file lies."""
    return path.with_name(path.name + ".lock")


class FileLock:
    """The lock of one store file, held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.witness: int | None = 0
        """The newest incarnation anybody noted; 0 when nobody did, None when the record cannot be read."""

    def __repr__(self) -> str:
        return f"<FileLock {self._path.name} {'free' if self._descriptor is None else 'held'}>"

    def acquire(self) -> None:
        """Take the lock and read the witness. Blocks for a tenth of a second at most.

        Raises:
            StoreLockedError: somebody has it; says who.
            StoreUnavailableError: the lock file cannot be made or opened.
        """
        place = lock_path(self._path)
        with _LOOK_AND_TAKE:
            own = _own_descriptor(place)
            if own is not None:
                raise self._refusal(_read(own), "this process: use the store that is open")
            try:
                descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise StoreUnavailableError(f"{place} cannot be opened ({error.strerror}): check permissions") from None
            if not _try_lock(descriptor):
                record = _read(descriptor)
                os.close(descriptor)
                raise self._refusal(record, "another process: stop it, or give another path")
            self._descriptor = descriptor
        record = _read(descriptor)
        self.witness = record.incarnation if record else None if os.fstat(descriptor).st_size else 0

    def record(self, incarnation: int) -> None:
        """Put this process and its incarnation into the lock file, on stable storage."""
        assert self._descriptor is not None, "the lock is not held"
        since = datetime.now(UTC).isoformat(timespec="seconds")
        record = LockRecord(host=socket.gethostname(), pid=os.getpid(), since=since, incarnation=incarnation)
        os.pwrite(self._descriptor, msgspec.json.encode(record).ljust(_SIZE - 1) + b"\n", 0)
        os.fsync(self._descriptor)
        self.witness = incarnation

    def release(self) -> None:
        """Give the lock back. The file stays: it is the witness."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _refusal(self, record: LockRecord | None, by: str) -> StoreLockedError:
        owner = str(record) if record else "an unknown owner (it has not signed the lock file yet)"
        return StoreLockedError(f"{self._path} is locked by {owner}, {by}", path=str(self._path), owner=owner)


def lock_owner(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return who holds the store at `path` (host, pid, since, incarnation), or None when the lock is free.

    Blocks briefly. An owner that has not signed yet is an empty dict.

    Raises:
        StoreUnavailableError: the lock file may not be read.
    """
    place = lock_path(Path(os.path.realpath(path)))
    with _LOOK_AND_TAKE:
        own = _own_descriptor(place)
        if own is not None:
            return _owner_fields(_read(own))
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(f"{place} cannot be read ({error.strerror}): check permissions") from None
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _owner_fields(_read(descriptor))
        finally:
            os.close(descriptor)
    return None


def _owner_fields(record: LockRecord | None) -> dict[str, Any]:
    return {} if record is None else msgspec.structs.asdict(record)


def _try_lock(descriptor: int) -> bool:
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_BETWEEN)
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _read(descriptor: int) -> LockRecord | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _SIZE, 0), type=LockRecord)
    except msgspec.DecodeError:
        return None


def _own_descriptor(place: Path) -> int | None:
    """Return a descriptor this process already has for the file, without opening it."""
    try:
        wanted = place.stat()
    except OSError:
        return None
    for descriptor in _descriptors():
        with suppress(OSError):
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return descriptor
    return None


def _descriptors() -> Iterator[int]:
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers, not paths
        if name.isdigit():
            yield int(name)
