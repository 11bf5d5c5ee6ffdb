"""What a power loss may leave of a store: record its system calls, cut the power after each, look at what is there.

A disk keeps what was synced. Of everything since, it may keep all, nothing, or any part of any part: writes in another
order, a write torn at a sector, a file whose name never reached its folder, a deleted one that is back. Each such
state is built, recovered by SQLite, and held against what the receipts had promised by then.

This file by itself is a program: `python tests/chaos/power_loss.py FULL|NORMAL|OFF [calls] [states per point]`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec

from answerback.store.checks import problems
from answerback.store.lock import LockRecord
from chaos.power_loss_worker import key, outcome

WORKER = Path(__file__).with_name("power_loss_worker.py")
DATABASE = "calls.db"
SECTOR = 512
TRACED = "openat,creat,pwrite64,write,fdatasync,fsync,ftruncate,unlink,unlinkat,rename"


class Op(NamedTuple):
    """One thing that was asked of the file system, or (`ack`) one promise that was made."""

    kind: str
    name: str
    offset: int = 0
    data: bytes = b""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried and what was found."""

    synchronous: str
    operations: dict[str, int]
    promises: int
    states: int
    bad: dict[str, int]
    """Broken promises, by kind, and in how many states."""


# recording -----------------------------------------------------------------------------------------------------------

_HEX = re.compile(r"\\x([0-9a-f]{2})")
_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_HALF = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_REST = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)$")


def _text(escaped: str) -> str:
    return _bytes(escaped).decode(errors="replace") if "\\x" in escaped else escaped


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex("".join(_HEX.findall(escaped)))


def _whole_lines(log: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the calls that succeeded, in the order in which they ended."""
    begun: dict[str, str] = {}
    with log.open() as lines:
        for raw in lines:
            line = raw.rstrip("\n")
            if half := _HALF.match(line):
                begun[half[1]] = half[3]
                continue
            if rest := _REST.match(line):
                line = f"{rest[1]} {rest[2]}({begun.pop(rest[1])}{rest[3]}"
            if (whole := _CALL.match(line)) and int(whole[4]) >= 0:
                yield whole[2], whole[3], int(whole[4])


def _operation(call: str, arguments: str, result: int, *, folder: str, acks: str) -> Op | None:
    if call in ("openat", "creat", "unlink", "unlinkat"):
        quoted = re.search(r'"([^"]*)"', arguments)
        path = _text(quoted[1]) if quoted else ""
        made = call == "creat" or "O_CREAT" in arguments
        if os.path.dirname(path) != folder or (call == "openat" and not made):  # noqa: PTH120 - text of a log
            return None
        return Op("make" if made else "unlink", path.removeprefix(f"{folder}/"))
    described = re.match(r"\d+<([^>]*)>", arguments)
    path = _text(described[1]) if described else ""
    name = path.removeprefix(f"{folder}/")
    rest = arguments[described.end() :] if described else ""
    if call in ("fsync", "fdatasync"):
        return Op("sync_folder", "") if path == folder else Op("sync", name) if path != name else None
    if call == "ftruncate" and path != name:
        return Op("truncate", name, int(rest.split(",")[1]))
    written = re.match(r', "([^"]*)"(\.*), \d+(?:, (\d+))?', rest)
    if written is None or call not in ("write", "pwrite64"):
        return None
    assert not written[2], "strace cut a write short"
    data = _bytes(written[1])[:result]
    if path == acks:
        return Op("ack", data.decode().strip())
    return Op("write", name, int(written[3]), data) if call == "pwrite64" and path != name else None


def record(folder: Path, synchronous: str, calls: int) -> list[Op]:
    """Run the worker on an empty folder and return what it did, the shared memory file left out."""
    place = str(folder.resolve())
    log, acks = f"{place}.strace", f"{place}.acks"
    descriptor = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        command = ["strace", "-f", "-y", "-xx", "-s", "200000", "-o", log, "-e", f"trace={TRACED}", sys.executable]
        command += ["-W", "ignore", str(WORKER), place, synchronous, str(calls), str(descriptor)]
        subprocess.run(command, check=True, pass_fds=[descriptor], timeout=120)
    finally:
        os.close(descriptor)
    found = [_operation(*line, folder=place, acks=acks) for line in _whole_lines(Path(log))]
    return [one for one in found if one is not None and not one.name.endswith("-shm")]


# replaying -----------------------------------------------------------------------------------------------------------


class _File:
    """One file: what is on the disk for certain, and what was asked since."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Op] = []
        self.named = False
        """Whether its folder certainly lists it."""

    def sync(self) -> None:
        for op in self.pending:
            _apply(self.synced, op)
        self.pending.clear()

    def everything(self) -> bytes:
        image = bytearray(self.synced)
        for op in self.pending:
            _apply(image, op)
        return bytes(image)

    def something(self, rng: random.Random) -> bytes:
        image = bytearray(self.synced)
        for op in self.pending:
            chance = rng.random()
            if chance < 0.45:
                _apply(image, op)
            elif chance < 0.6 and op.kind == "write" and len(op.data) > SECTOR:
                cut = SECTOR * rng.randrange(1, len(op.data) // SECTOR + 1)
                _apply(image, op._replace(data=op.data[:cut]))
        return bytes(image)


def _apply(image: bytearray, op: Op) -> None:
    if op.kind == "truncate":
        del image[op.offset :]
        image.extend(bytes(op.offset - len(image)))
        return
    image.extend(bytes(max(0, op.offset + len(op.data) - len(image))))
    image[op.offset : op.offset + len(op.data)] = op.data


class Disk:
    """A folder on a disk that may lose power."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._deleted: dict[str, _File] = {}

    def perform(self, op: Op) -> None:
        """Take one operation."""
        match op.kind:
            case "make":
                self._files.setdefault(op.name, _File())
            case "write" | "truncate":
                self._files[op.name].pending.append(op)
            case "sync":
                self._files[op.name].sync()
            case "sync_folder":
                self._deleted.clear()
                for file in self._files.values():
                    file.named = True
            case "unlink":
                gone = self._files.pop(op.name)
                if gone.named:
                    self._deleted[op.name] = gone
            case _:
                raise AssertionError(op.kind)

    def states(self, rng: random.Random, count: int) -> Iterator[dict[str, bytes]]:
        """Yield what may be there when the power is back: the least, the most, and `count` of those between."""
        certain = {name: bytes(file.synced) for name, file in self._files.items() if file.named}
        yield {name: bytes(file.synced) for name, file in self._deleted.items()} | certain
        yield {name: file.everything() for name, file in self._files.items()}
        for _ in range(count):
            found = {name: file.something(rng) for name, file in self._deleted.items() if rng.random() < 0.5}
            for name, file in self._files.items():
                if file.named or rng.random() < 0.5:
                    found[name] = file.something(rng)
            yield found


def broken(folder: Path, state: Mapping[str, bytes], promised: list[str]) -> str | None:
    """Build one state and let SQLite recover it; return which promise it breaks, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in state.items():
        (folder / name).write_bytes(content)
    if DATABASE not in state:
        return "lost" if promised else None
    try:
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as connection:
            if connection.execute("PRAGMA user_version").fetchone() == (0,):
                return "lost" if promised else None
            if problems(connection):
                return "damaged"
            return _untrue(connection, state, promised)
    except sqlite3.DatabaseError:
        return "damaged"


def _untrue(connection: sqlite3.Connection, state: Mapping[str, bytes], promised: list[str]) -> str | None:
    rows = {name: (attempt, result) for name, attempt, result in connection.execute(
        "SELECT call_id, attempt, outcome FROM calls"
    )}  # fmt: skip
    heard = {name for (name,) in connection.execute("SELECT key FROM inputs")}
    if {name.removeprefix("c") for name in rows} != {name.removeprefix("k") for name in heard}:
        return "half a transaction"
    for promise in promised:
        kind, number = promise.split()
        attempt, result = rows.get(key(int(number)).call_id, (0, None))
        if attempt < 1 or (kind == "finished" and result != outcome(int(number))):
            return "lost"
    witness = _witness(state)
    row = connection.execute("SELECT incarnation FROM meta").fetchone()
    # The file would be taken for one that was rolled back, and its calls for ones that may have run.
    return "behind its witness" if witness > (row[0] if row else 0) else None


def _witness(state: Mapping[str, bytes]) -> int:
    try:
        return msgspec.json.decode(state.get(f"{DATABASE}.lock", b""), type=LockRecord).incarnation
    except msgspec.DecodeError:
        return 0


def replay(operations: list[Op], folder: Path, *, synchronous: str, states: int, seed: int = 7) -> Report:
    """Cut the power after every operation."""
    rng = random.Random(seed)
    disk = Disk()
    promised: list[str] = []
    bad: Counter[str] = Counter()
    tried = 0
    for op in operations:
        if op.kind == "ack":
            promised.append(op.name)
        else:
            disk.perform(op)
        for state in disk.states(rng, states):
            tried += 1
            if found := broken(folder, state, promised):
                bad[found] += 1
    return Report(
        synchronous=synchronous,
        operations=dict(Counter(op.kind for op in operations)),
        promises=len(promised),
        states=tried,
        bad=dict(bad),
    )


def run(synchronous: str, *, calls: int, states: int) -> Report:
    """Record and replay one store."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        folder = Path(name) / "db"
        folder.mkdir()
        operations = record(folder, synchronous, calls)
        return replay(operations, Path(name) / "after", synchronous=synchronous, states=states)


if __name__ == "__main__":
    mode = sys.argv[1] if len(sys.argv) > 1 else "FULL"
    many, per_point = (int(sys.argv[place]) if len(sys.argv) > place else 4 for place in (2, 3))
    print(json.dumps(msgspec.to_builtins(run(mode, calls=many, states=per_point))))
