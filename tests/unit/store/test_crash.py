"""Death of the process, and errors of the disk, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from answerback.model import CallKey, CallState
from answerback.store.sqlite import SQLiteStore

# The backend that matters is the one of the process that dies; the one that looks at the file may be either.
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])

PRELUDE = """
import os, sys
import anyio
from answerback.model import CallKey
from answerback.store.conformance.builders import finished, observed, started
from answerback.store.sqlite import SQLiteStore

path, backend = sys.argv[1:3]
"""

WRITING = (
    PRELUDE
    + """
async def answer(store, number):
    key = CallKey("s", "t", f"{number:06}")
    store.write(observed(key), lazy=True)
    assert list(await store.write(started(key)).committed()) == [1]
    os.write(1, f"S {number}\\n".encode())
    assert list(await store.write(finished(key)).committed()) == [1]
    os.write(1, f"F {number}\\n".encode())

async def main():
    first = int(sys.argv[3])
    async with SQLiteStore(path) as store:
        for base in range(first, first + 100_000, 8):
            async with anyio.create_task_group() as group:
                for number in range(base, base + 8):
                    group.start_soon(answer, store, number)

anyio.run(main, backend=backend)
"""
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_what_a_receipt_promised_is_there_after_kill_9(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "calls.db"
    promised: dict[int, str] = {}
    for life in range(4):
        command = [sys.executable, "-c", WRITING, str(path), backend, str(life * 100_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(20 + life * 37)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):
                name, number = line.split()
                promised[int(number)] = name
        async with SQLiteStore(path) as store:
            rows = {int(record.key.call_id): record for record in await store.calls(limit=1_000_000)}
            assert store.info.incarnation == 2 * life + 2
            assert store.info.complete
        for known, name in promised.items():
            state = rows[known].state
            assert state is CallState.FINISHED or (name == "S" and state is CallState.STARTED)
            assert (rows[known].outcome is None) == (state is CallState.STARTED)


FORGETTING = (
    PRELUDE
    + """
async def main():
    store = SQLiteStore(path)
    await store.open()
    await store.write(observed(CallKey("s", "t", "waited"))).committed()
    store.write(observed(CallKey("s", "t", "queued")), lazy=True)
    globals()["kept"] = store

anyio.run(main, backend=backend)
"""
)

FORGETTING_THE_LOOP = (
    PRELUDE
    + """
import asyncio

async def main():
    store = SQLiteStore(path)
    await store.open()
    await store.write(observed(CallKey("s", "t", "waited"))).committed()
    return store

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
"""
)


async def run_to_its_end(code: str, path: Path, backend: str) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), backend], check=False, timeout=30, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 15, "the interpreter hung"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_store_nobody_closed_is_committed_at_the_end_of_the_run_and_lets_the_process_end(
    tmp_path: Path, backend: str
) -> None:
    path = tmp_path / "calls.db"
    await run_to_its_end(FORGETTING, path, backend)
    async with SQLiteStore(path) as store:
        assert {record.key.call_id for record in await store.calls()} == {"waited", "queued"}


async def test_a_loop_nobody_closed_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    await run_to_its_end(FORGETTING_THE_LOOP, path, "asyncio")
    async with SQLiteStore(path) as store:
        assert {record.key.call_id for record in await store.calls()} == {"waited"}


FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* While the file named by FAIL_SYNCS exists, a number of syncs fail as a broken disk makes them fail. */
static int fails(void) {
    static long left = -1;
    const char *flag = getenv("FAIL_SYNCS");
    if (!flag || access(flag, F_OK) != 0) return 0;
    if (left < 0) left = atol(getenv("FAIL_SYNCS_TIMES"));
    if (left == 0) return 0;
    left--;
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fails() ? -1 : real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fails() ? -1 : real(fd);
}
"""

ON_A_BROKEN_DISK = (
    PRELUDE
    + """
import json

async def main():
    seen = []
    store = SQLiteStore(path)
    await store.open()
    keys = [CallKey("s", "t", f"c{n}") for n in range(3)]
    await store.write(*map(observed, keys)).committed()
    open(os.environ["FAIL_SYNCS"], "w").close()
    for key in keys:
        try:
            counts = await store.write(started(key)).committed()
            seen.append(list(counts))
        except Exception as error:
            seen.append(type(error).__name__)
    health = store.health.degraded
    await store.aclose()
    print(json.dumps([seen, health]))

anyio.run(main, backend=backend)
"""
)


@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("failures", "seen", "states"),
    [
        # One failed sync: opened again, looked up, every start counted once.
        (1, [[1], [1], [1]], {"started"}),
        # A disk that goes on failing: nothing is promised, and the store is closed.
        (1000, ["StoreCorruptError", "StoreClosedError", "StoreClosedError"], {"requested", "started"}),
    ],
)
async def test_an_io_error_is_looked_into_before_anything_is_decided(
    tmp_path: Path, backend: str, failures: int, seen: list[object], states: set[str]
) -> None:
    if sys.platform != "linux":
        pytest.skip("preloads a library the Linux way")
    path = tmp_path / "calls.db"
    source, library = tmp_path / "sync.c", tmp_path / "sync.so"
    source.write_text(FAILING_SYNC)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAIL_SYNCS": str(tmp_path / "fail"),
        "FAIL_SYNCS_TIMES": str(failures),
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_A_BROKEN_DISK, str(path), backend],
        env=environment,
        check=False,
        timeout=30,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results, _ = json.loads(done.stdout)
    assert results == seen
    async with SQLiteStore(path) as store:
        rows = await store.calls()
        assert {record.state.value for record in rows} <= states
        for record in rows:
            steps = [step.target for step in await store.transitions(CallKey("s", "t", record.key.call_id))]
            assert steps in (["requested"], ["requested", "started"])
