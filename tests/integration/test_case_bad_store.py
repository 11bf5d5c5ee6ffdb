"""Store files that cannot be used: each is refused in one line that says what to do, and is left as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from answerback import Handlers, Runtime, SQLiteStore
from answerback.daemon.cli import main
from answerback.errors import (
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
    StoreVersionError,
)

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "unit" / "store" / "golden" / "0002.db"
NOT_STARTED = 3
READING = ["info", "check", "backup"]
WRITING = ["prune", "migrate"]


def good(path: Path) -> None:
    shutil.copy(GOLDEN, path)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")


def text(path: Path) -> None:
    path.write_text("Dear diary, this is no database, and it is longer than the header of one. " * 20)


def newer(path: Path) -> None:
    good(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 99")


def garbled(path: Path) -> None:
    good(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)


def cut_off(path: Path) -> None:
    good(path)
    with path.open("r+b") as file:
        file.truncate(5000)


def folder(path: Path) -> None:
    path.mkdir()


BAD: list[tuple[Callable[[Path], None], type[StoreError], str]] = [
    (foreign, StoreVersionError, "database of another program: give the path of a store"),
    (text, StoreVersionError, "not a database: give the path of a store"),
    (newer, StoreVersionError, "use the release that wrote it, or newer"),
    (cut_off, StoreCorruptError, "restore a backup"),
    (garbled, StoreCorruptError, "restore a backup"),
    (folder, StoreUnavailableError, "is a directory"),
]


def contents(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def program(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Run a command; return its exit code and what it said on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr().err


def one_line(said: str) -> bool:
    return said.count("\n") == 1 and "Traceback" not in said


@pytest.mark.parametrize(("make", "error", "advice"), BAD, ids=[case[0].__name__ for case in BAD])
async def test_a_runtime_says_what_to_do_and_leaves_the_file_alone(
    path: Path, make: Callable[[Path], None], error: type[StoreError], advice: str
) -> None:
    make(path)
    before = contents(path)
    client = AsyncOpenAI(api_key="sk-test", base_url="http://127.0.0.1:9")
    runtime = Runtime(client, handlers=Handlers(), store=SQLiteStore(path))
    with pytest.raises(error, match=advice) as refused:
        async with runtime:
            raise AssertionError("entered")
    await client.close()
    assert "\n" not in str(refused.value)
    assert contents(path) == before


@pytest.mark.parametrize(("make", "error", "advice"), BAD[:4], ids=[case[0].__name__ for case in BAD[:4]])
@pytest.mark.parametrize("words", [["ls"], ["calls"], ["show", "x"], ["decide", "x", "--unknown"]], ids=lambda w: w[0])
def test_commands_about_calls_exit_3_in_one_line(
    path: Path,
    make: Callable[[Path], None],
    error: type[StoreError],
    advice: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(path)
    before = contents(path)
    code, said = program(capsys, *words, "--db", str(path))
    assert (code, one_line(said)) == (NOT_STARTED, True), said
    assert advice in said
    assert contents(path) == before


@pytest.mark.parametrize(("make", "error", "advice"), BAD[:3], ids=[case[0].__name__ for case in BAD[:3]])
@pytest.mark.parametrize("name", [*READING, *WRITING])
def test_commands_about_the_file_exit_3_in_one_line(
    path: Path,
    make: Callable[[Path], None],
    error: type[StoreError],
    advice: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(path)
    before = contents(path)
    target = [str(path.with_name("copy.db"))] if name == "backup" else []
    code, said = program(capsys, "store", name, *target, "--db", str(path))
    assert (code, one_line(said)) == (NOT_STARTED, True), said
    assert advice in said
    assert contents(path) == before
    assert not path.with_name("copy.db").exists()


def test_a_damaged_file_is_checked_and_called_damaged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    garbled(path)
    with pytest.raises(SystemExit) as ended:
        main(["store", "check", "--db", str(path)])
    captured = capsys.readouterr()
    assert ended.value.code in (1, NOT_STARTED)
    assert "damaged" in captured.err or "SQLite finds the file whole" in captured.out


@contextmanager
def held(path: Path, program: str) -> Generator[int]:
    """Let another process hold the file for the length of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        yield holder.pid
        holder.communicate("")


RUNTIME = """
import sys, anyio
from answerback.store.sqlite import SQLiteStore
async def hold():
    async with SQLiteStore(sys.argv[1]):
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(hold)
"""
EXCLUSIVE = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("PRAGMA locking_mode = EXCLUSIVE")
other.execute("PRAGMA journal_mode = DELETE").fetchall()
other.execute("BEGIN EXCLUSIVE")
print("ready", flush=True)
sys.stdin.read()
"""


async def test_a_store_another_process_has_is_refused_with_its_owner(path: Path) -> None:
    good(path)
    client = AsyncOpenAI(api_key="sk-test", base_url="http://127.0.0.1:9")
    runtime = Runtime(client, handlers=Handlers(), store=SQLiteStore(path))
    with held(path, RUNTIME) as pid, pytest.raises(StoreLockedError) as refused:
        async with runtime:
            pass
    await client.close()
    assert f"pid {pid} since" in str(refused.value)
    assert "stop it, or give another path" in str(refused.value)
    async with SQLiteStore(path) as store:
        assert len(await store.calls()) == 4


async def test_a_store_another_program_holds_open_is_refused_by_what_holds_it(path: Path) -> None:
    good(path)
    advice = "another SQLite connection, not answerback's: close it"
    with held(path, EXCLUSIVE), pytest.raises(StoreLockedError, match=advice):
        async with SQLiteStore(path, busy_timeout=0.05):
            pass


# What root may do has to be taken away, in a process of its own.

WITHOUT_POWER = ["setpriv", "--bounding-set", "-dac_override", "--"]
"""Root without its right to ignore permissions."""


def powerless(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may not write what its permissions forbid."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which(WITHOUT_POWER[0]) is None:
            pytest.skip("needs setpriv to take root's rights away")
        prefix = WITHOUT_POWER
    return subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=60, check=False)


def opened(path: Path, run: Callable[..., subprocess.CompletedProcess[str]] = powerless) -> str:
    """Let a Runtime open a store; return what it said."""
    return run(sys.executable, "-W", "ignore", str(HERE / "store_opener.py"), str(path)).stdout.strip()


def test_a_file_that_may_not_be_written_is_refused_and_can_still_be_read(path: Path) -> None:
    good(path)
    path.chmod(0o444)
    assert opened(path) == (
        f"StoreUnavailableError: {path} cannot be written by this user: change its permissions, or move it"
    )
    read = powerless(sys.executable, "-m", "answerback", "calls", "--db", str(path))
    assert (read.returncode, "refund" in read.stdout) == (0, True)
    pruned = powerless(sys.executable, "-m", "answerback", "store", "prune", "--db", str(path))
    assert (pruned.returncode, one_line(pruned.stderr)) == (NOT_STARTED, True)


def test_a_folder_that_may_not_be_written_is_refused(path: Path) -> None:
    good(path)
    path.parent.chmod(0o555)
    try:
        said = opened(path)
        read = powerless(sys.executable, "-m", "answerback", "calls", "--db", str(path))
    finally:
        path.parent.chmod(0o755)
    assert said.startswith("StoreUnavailableError")
    assert "SQLite keeps its log beside the file" in said
    # A store's readers need its shared memory file, which cannot be made there.
    assert (read.returncode, one_line(read.stderr)) == (NOT_STARTED, True)
    assert "check permissions of file and folder" in read.stderr


FULL = """
import os, subprocess, sys
folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%s" % sys.argv[2], "tmpfs", folder], check=True)
with open(os.path.join(folder, "filler"), "wb") as filler:
    filler.write(bytes(int(sys.argv[3])))
sys.exit(subprocess.run(sys.argv[4:]).returncode)
"""


def on_a_full_disk(folder: Path, *, size: int, filled: int) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a way to run a program that sees a small disk in place of a folder."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own (unshare)")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        wrapped = [*unshare, sys.executable, "-c", FULL, str(folder), str(size), str(filled), *command]
        return subprocess.run(wrapped, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize("left", [0, 4096, 40_960])
def test_a_disk_with_no_room_for_a_new_store_is_named(path: Path, left: int) -> None:
    size = 256 * 1024
    said = opened(path, on_a_full_disk(path.parent, size=size, filled=size - left))
    assert said.startswith("StoreUnavailableError"), said
    assert "free some disk space" in said
    assert "\n" not in said
