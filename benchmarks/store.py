"""What a durable call costs the store: fsyncs, calls per fsync, CPU.

    python benchmarks/store.py [--rounds 100] [--backend asyncio|trio] [--dir DIR] [--json]

A round is S sessions with N parallel calls each: T0 lazily, then per call a handler task that waits for T1, yields once
and waits for T2 (the tasks of the runtime, without a handler's work), then T3 and T4 lazily per session. A `once` call
waits for its start, an `idempotent` one does not.

CPU is that of the whole child process less that of the same tasks over a store that does nothing.

fsyncs are counted by a library preloaded into a child process (compiled here; without a C compiler the store's own
count of commits stands in, which leaves out checkpoints). It can also give every fsync the same length, so that calls
per fsync can be compared between machines. Goals are ratios and counts; only the CPU figure depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static atomic_long *calls;
static long pause_us;

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("FSYNC_COUNT"), *us = getenv("FSYNC_US");
    pause_us = us ? atol(us) : 0;
    int fd = file ? open(file, O_RDWR | O_CREAT, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, sizeof(long)) == 0)
        calls = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int count(void) {
    if (calls && calls != MAP_FAILED) atomic_fetch_add(calls, 1);
    struct timespec t = {pause_us / 1000000, pause_us % 1000000 * 1000};
    if (pause_us) nanosleep(&t, NULL);
    return 0;
}

int fsync(int fd) { (void)fd; return count(); }
int fdatasync(int fd) { (void)fd; return count(); }
"""

GOALS = {
    "fsyncs_1x8": ("<=", 0.27),
    "fsyncs_8x8": ("<=", 0.05),
    "fsyncs_32x8": ("<=", 0.02),
    "fsyncs_1x8_idempotent": ("<=", 0.135),
    "calls_per_fsync_1x8_1ms": (">=", 3.0),
    "calls_per_fsync_8x8_1ms": (">=", 14.0),
    "calls_per_fsync_8x8_4ms": (">=", 20.0),
    "cpu_us_8x8": ("<=", 80.0),
}


def compile_shim(folder: Path) -> Path | None:
    """Compile the counting library, where there is a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


def measure(
    folder: Path, shim: Path | None, *, shape: str, rounds: int, backend: str, effects: str = "once", us: int = 0
) -> dict[str, Any]:
    """Run one shape in a child process and return what it saw."""
    count = folder / "count"
    count.unlink(missing_ok=True)
    environment = dict(os.environ)
    if shim is not None:
        environment |= {"LD_PRELOAD": str(shim), "FSYNC_COUNT": str(count), "FSYNC_US": str(us)}
    database = folder / f"{shape}-{effects}-{us}.db"
    command = [sys.executable, __file__, "--child", shape, "--rounds", str(rounds), "--backend", backend]
    command += ["--effects", effects, "--database", str(database)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    for path in folder.glob(f"{database.name}*"):
        path.unlink()
    return json.loads(done.stdout)


def read_count() -> int | None:
    """Return the fsyncs of this process so far, or None when they are not counted."""
    path = os.environ.get("FSYNC_COUNT")
    return None if path is None else int.from_bytes(Path(path).read_bytes(), sys.byteorder)


async def child(shape: str, *, rounds: int, effects: str, database: str) -> dict[str, Any]:
    """Run the rounds and return fsyncs (or commits), time and CPU per call."""
    from answerback.store.sqlite import SQLiteStore

    sessions, parallel = (int(part) for part in shape.split("x"))
    empty = time.process_time()
    await run_rounds(NullStore(), sessions, parallel, rounds, effects, start=0)
    empty = time.process_time() - empty
    async with SQLiteStore(database) as store:
        await run_rounds(store, sessions, parallel, 3, effects, start=rounds)
        commits, before = store.health.commits, read_count()
        cpu, wall = time.process_time(), time.perf_counter()
        await run_rounds(store, sessions, parallel, rounds, effects, start=0)
        await store.flush()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        counted, commits = read_count(), store.health.commits - commits
    syncs = commits if counted is None or before is None else counted - before
    calls = sessions * parallel * rounds
    return {
        "calls": calls,
        "counted": "commits" if counted is None else "fsyncs",
        "fsyncs_per_call": syncs / calls,
        "commits_per_call": commits / calls,
        "seconds": wall,
        "calls_per_second": calls / wall,
        "cpu_us_per_call": (cpu - empty) / calls * 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


class NullStore:
    """Takes every write and keeps nothing."""

    def write(self, *_: Any, **__: Any) -> NullStore:
        """Return a receipt."""
        return self

    async def committed(self) -> list[int]:
        """Answer at the next scheduling point."""
        import anyio.lowlevel

        await anyio.lowlevel.checkpoint()
        return [1]


async def run_rounds(store: Any, sessions: int, parallel: int, rounds: int, effects: str, *, start: int) -> None:
    """Let every session go through its rounds, all sessions side by side."""
    import anyio

    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(session, store, f"sess_{number:016x}", parallel, range(start, start + rounds), effects)


async def session(store: Any, name: str, parallel: int, rounds: range, effects: str) -> None:
    """Go through the rounds of one session."""
    import anyio

    from answerback.model import CallKey, CallRecord, CallState
    from answerback.store.base import InsertCall, UpdateCall

    for number in rounds:
        keys = [CallKey(name, f"turn_{number:016x}", f"call_{index:016x}") for index in range(parallel)]
        for key in keys:
            record = CallRecord(
                key=key,
                name="refund",
                arguments=b'{"order_id":"4711","cents":1200}',
                arguments_hash="f" * 64,
                handler_version="0" * 16,
                observed_at=time.time_ns() // 1000,
            )
            store.write(InsertCall(record), lazy=True)
        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(handler, store, key, effects)
        now = time.time_ns() // 1000
        for source, target in (
            (CallState.FINISHED, CallState.SUBMITTED),
            (CallState.SUBMITTED, CallState.ACKED),
        ):
            moves = [UpdateCall(key=key, sources=(source,), target=target, at=now) for key in keys]
            store.write(*moves, lazy=True)


async def handler(store: Any, key: Any, effects: str) -> None:
    """Do what the runtime's handler task does around a handler."""
    import anyio.lowlevel

    from answerback.model import CallState
    from answerback.store.base import UpdateCall

    now = time.time_ns() // 1000
    token = os.urandom(8).hex()
    start = UpdateCall(
        key=key,
        sources=(CallState.REQUESTED,),
        target=CallState.STARTED,
        at=now,
        changes={"attempt": 1, "token": token, "incarnation": 1, "started_at": now, "deadline": now + 600_000_000},
    )
    receipt = store.write(start, lazy=effects != "once")
    if effects == "once":
        counts = await receipt.committed()
        assert list(counts) == [1]
    await anyio.lowlevel.checkpoint()
    outcome = json.dumps({"type": "tool_result", "call_id": key.call_id, "success": True, "output": "paid" * 20})
    finish = UpdateCall(
        key=key,
        sources=(CallState.STARTED, CallState.INDETERMINATE),
        target=CallState.FINISHED,
        at=now,
        token=token,
        changes={"outcome": outcome.encode(), "outcome_kind": "ok", "finished_at": now},
    )
    counts = await store.write(finish).committed()
    assert list(counts) == [1]


def report(folder: Path, *, rounds: int, backend: str) -> dict[str, Any]:
    """Measure every figure."""
    shim = compile_shim(folder)
    figures: dict[str, Any] = {}
    for shape in ("1x8", "8x8", "32x8"):
        seen = measure(folder, shim, shape=shape, rounds=rounds, backend=backend)
        figures[f"fsyncs_{shape}"] = seen["fsyncs_per_call"]
        figures[f"cpu_us_{shape}"] = seen["cpu_us_per_call"]
        figures["counted"] = seen["counted"]
        seen = measure(folder, shim, shape=shape, rounds=rounds, backend=backend, effects="idempotent")
        figures[f"fsyncs_{shape}_idempotent"] = seen["fsyncs_per_call"]
    if shim is not None:
        for shape, us in (("1x8", 1000), ("1x8", 4000), ("8x8", 1000), ("8x8", 4000)):
            seen = measure(folder, shim, shape=shape, rounds=rounds, backend=backend, us=us)
            figures[f"calls_per_fsync_{shape}_{us // 1000}ms"] = seen["calls_per_second"] * us / 1e6
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--dir", type=Path, help="where the files go; a tmpfs makes paced figures comparable")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--effects", default="once", help=argparse.SUPPRESS)
    parser.add_argument("--database", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import anyio

        async def run() -> None:
            seen = await child(options.child, rounds=options.rounds, effects=options.effects, database=options.database)
            print(json.dumps(seen))

        anyio.run(run, backend=options.backend)
        return
    memory = Path("/dev/shm")
    home = options.dir or (memory if os.access(memory, os.W_OK) else None)
    with tempfile.TemporaryDirectory(dir=home) as folder:
        figures = report(Path(folder), rounds=options.rounds, backend=options.backend)
    if options.json:
        print(
            json.dumps({name: value if isinstance(value, str) else round(value, 4) for name, value in figures.items()})
        )
        return
    for name, value in figures.items():
        sign, goal = GOALS.get(name, ("", None))
        shown = value if isinstance(value, str) else f"{value:.4f}"
        print(f"{name:28} {shown:>10}" + (f"   goal {sign} {goal}" if goal is not None else ""))


if __name__ == "__main__":
    main()
