"""One writer per file: between processes, within one, and after a killed owner whose child lives on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from answerback.errors import StoreLockedError
from answerback.store.lock import FileLock, lock_path
from answerback.store.reader import lock_owner
from answerback.store.sqlite import SQLiteStore

OWNER = """
import os, sys
from pathlib import Path
from answerback.store.lock import FileLock

lock = FileLock(Path(sys.argv[1]))
lock.acquire()
lock.record(7)
child = 0
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(path: Path, *, fork: bool = False) -> Generator[subprocess.Popen[str]]:
    """Let another process hold the lock; with `fork`, one that has a child with the same descriptors."""
    command = [sys.executable, "-c", OWNER, str(path), "fork" if fork else "alone"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        # Closing its input also ends the child.
        process.communicate(timeout=10)


async def test_another_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with owner(path) as process:
        with pytest.raises(StoreLockedError) as caught:
            await SQLiteStore(path).open()
        assert caught.value.owner.startswith(f"host {socket.gethostname()} pid {process.pid} since 20")
        assert caught.value.path == str(path)
        found = lock_owner(path)
        assert found is not None
        assert (found["pid"], found["incarnation"]) == (process.pid, 7)
    assert lock_owner(path) is None


async def test_the_lock_is_free_when_its_owner_was_killed_though_a_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with owner(path, fork=True) as process:
        process.kill()
        process.wait(timeout=10)
        assert process.returncode == -signal.SIGKILL
        assert lock_owner(path) is None
        async with SQLiteStore(path) as store:
            # The witness of the killed owner: its file is gone, so this one is behind.
            assert (store.info.incarnation, store.info.complete) == (8, False)


async def test_a_second_store_in_the_same_process_is_refused_and_does_not_free_the_first(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    async with SQLiteStore(path):
        with pytest.raises(StoreLockedError, match="this process"):
            await SQLiteStore(path).open()
        # Asking, and being refused, must not give the lock up: POSIX locks go with any closed descriptor.
        found = lock_owner(path)
        assert found is not None
        assert found["pid"] == os.getpid()
        asked = subprocess.run(
            [sys.executable, "-c", OWNER, str(path), "alone"], capture_output=True, text=True, input="", check=False
        )
        assert "StoreLockedError" in asked.stderr
    assert lock_owner(path) is None


async def test_two_names_of_one_file_find_one_lock(tmp_path: Path) -> None:
    path, alias = tmp_path / "calls.db", tmp_path / "alias.db"
    async with SQLiteStore(path):
        alias.symlink_to(path)
        with pytest.raises(StoreLockedError):
            await SQLiteStore(alias).open()


def test_the_lock_file_holds_one_sector_that_names_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    lock = FileLock(path)
    lock.acquire()
    assert lock.witness == 0
    lock.record(3)
    text = lock_path(path).read_bytes()
    # Reading it through a path gives the lock up, as documented in the module; nothing is asked of it below.
    assert len(text) == 512
    assert b'"incarnation":3' in text
    assert repr(lock) == "<FileLock calls.db held>"
    lock.release()
    lock.acquire()
    assert lock.witness == 3
    lock.release()


def test_nobody_owns_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert lock_owner(tmp_path / "calls.db") is None
    assert not lock_path(tmp_path / "calls.db").exists()


def test_an_owner_that_has_not_signed_yet_is_somebody(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    lock = FileLock(path)
    lock.acquire()
    assert lock_owner(path) == {}
    with pytest.raises(StoreLockedError, match="unknown owner"):
        FileLock(path).acquire()
    lock.release()
