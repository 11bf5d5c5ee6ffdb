"""Run cases: a harness in a process of its own, a fork server for the workers, and the evidence they leave."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chaos.fork_server import Ended, Lane, fork_server
from chaos.kill_case import Case, Reached
from chaos.kill_checker import Evidence, Step, StoredCall, Violation, check, read_sent
from chaos.kill_worker import LOG, MARKER, RESULT, STORE, read_lines

WORKER_LOG = "worker.log"
BANK_PATIENCE = 10.0


class Server:
    """The harness in its own process, which outlives every worker."""

    def __init__(self, base_url: str, control_url: str) -> None:
        self.base_url = base_url
        self._control_url = control_url

    def __repr__(self) -> str:
        return f"<Server {self.base_url}>"

    def control(self, path: str, data: object = None) -> Any:
        """Ask the control API; with `data`, POST it."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f"{self._control_url}/{path}", data=body)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def session(self, session_id: str) -> dict[str, Any]:
        """Retrieve a session as any client would."""
        url = f"{self.base_url}/agents/sessions/{session_id}"
        headers = {"OpenAI-Beta": "agents=v1", "Authorization": "Bearer sk-harness"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
            body: dict[str, Any] = json.load(response)
        return body


@contextlib.contextmanager
def harness(folder: Path, script: Path, knobs: Mapping[str, str] | None = None) -> Generator[Server]:
    """Run `answerback harness` for the length of a block."""
    command = [sys.executable, "-m", "answerback", "harness", "--memory", "--script", str(script)]
    for name, value in (knobs or {}).items():
        command += ["--set", f"{name}={value}"]
    with (folder / "harness.log").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield Server(told["base_url"], told["control_url"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)
            if process.stdout is not None:
                process.stdout.close()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one case."""

    case: Case
    first: Ended
    reached: bool
    """Whether the worker got to its step."""
    last: Ended
    finished: bool
    """Whether the turn came to its end in the last run."""
    violations: Sequence[Violation]
    middle: Evidence
    """What was left when the first run had ended."""
    end: Evidence
    seconds: float


class Rig:
    """Runs cases, several at a time: each takes a lane for as long as it lasts."""

    def __init__(self, server: Server, lanes: Sequence[Lane], folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._lanes: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in lanes:
            self._lanes.put(lane)

    def __repr__(self) -> str:
        return f"<Rig {self._lanes.qsize()} lanes free>"

    def run(self, case: Case) -> Report:
        """Run a case: until it ends itself at its step, then again to the end of its turn; check what is left."""
        lane = self._lanes.get()
        started = time.monotonic()
        try:
            folder = self._folder / case.id
            folder.mkdir()
            case = msgspec.structs.replace(case, base_url=self.server.base_url, folder=str(folder))
            if case.post_fault is not None:
                rule = {"on": "post", "where": {"call_id": f"{case.id}.0"}, "do": case.post_fault}
                self.server.control("faults", [rule])
            first = self._worker(lane, case)
            reached = _reached(folder / MARKER) == case.step
            middle = self.evidence(case, snapshot=folder / "middle")
            violations = check(middle, final=False)
            last = first
            if case.next_step is not None:
                again = msgspec.structs.replace(case, step=case.next_step, occurrence=1)
                self._worker(lane, again)
                violations += _new(violations, check(self.evidence(case, snapshot=folder / "second"), final=False))
            if case.step is not None:
                last = self._worker(lane, msgspec.structs.replace(case, step=None))
            if case.late_effect:
                _await_bank(folder / LOG)
            end = self.evidence(case)
            violations += _new(violations, check(end))
        finally:
            self._lanes.put(lane)
        return Report(
            case=case,
            first=first,
            reached=reached,
            last=last,
            finished=(folder / RESULT).exists(),
            violations=violations,
            middle=middle,
            end=end,
            seconds=time.monotonic() - started,
        )

    def run_program(self, program: str, payload: bytes, *, output: Path, kill_after: float | None = None) -> Ended:
        """Run another program of the fork server once."""
        lane = self._lanes.get()
        try:
            return lane.run(program, payload, output=output, kill_after=kill_after)
        finally:
            self._lanes.put(lane)

    def _worker(self, lane: Lane, case: Case) -> Ended:
        return lane.run("kill", msgspec.json.encode(case), output=Path(case.folder) / WORKER_LOG)

    def evidence(self, case: Case, *, snapshot: Path | None = None) -> Evidence:
        """Collect what is left of a case; with `snapshot`, from a copy of the store, so that looking changes nothing."""
        folder = Path(case.folder)
        store = folder / STORE
        if snapshot is not None:
            snapshot.mkdir()
            for file in folder.glob(f"{STORE}*"):
                shutil.copy2(file, snapshot)
            store = snapshot / STORE
        session_id = read_session_id(store, case.id)
        if session_id is None:
            return Evidence(lines=read_lines(folder / LOG))
        session = self.server.session(session_id)
        entries = self.server.control("log")
        return Evidence(
            lines=read_lines(folder / LOG),
            calls=read_calls(store),
            steps=read_steps(store),
            sent=read_sent(entries, session_id),
            status=session["status"],
            required=[action.get("call_id") or "-" for action in session["required_actions"]],
        )


@contextlib.contextmanager
def open_rig(
    folder: Path, cases: Sequence[Case], *, lanes: int, knobs: Mapping[str, str] | None = None
) -> Generator[Rig]:
    """Run a rig whose scripted model knows these cases."""
    script = folder / "script.json"
    script.write_text(json.dumps({"rules": [case.script_rule() for case in cases]}))
    with rig_of(folder, script, lanes=lanes, knobs=knobs) as rig:
        yield rig


@contextlib.contextmanager
def rig_of(folder: Path, script: Path, *, lanes: int, knobs: Mapping[str, str] | None = None) -> Generator[Rig]:
    """Run a rig whose scripted model says what a script file says."""
    with harness(folder, script, knobs) as server, fork_server(lanes) as forks:
        yield Rig(server, forks, folder)


def _new(known: Sequence[Violation], found: Sequence[Violation]) -> list[Violation]:
    return [violation for violation in found if violation not in known]


def _await_bank(log: Path) -> None:
    """Wait until the bank has carried out everything it was sent: one effect for each entry."""
    until = time.monotonic() + BANK_PATIENCE
    while time.monotonic() < until:
        kinds = [line.what for line in read_lines(log)]
        if kinds.count("effect") >= kinds.count("entry"):
            return
        time.sleep(0.02)


def _reached(marker: Path) -> str | None:
    return msgspec.json.decode(marker.read_bytes(), type=Reached).step if marker.exists() else None


def _rows(store: Path, query: str) -> list[sqlite3.Row]:
    if not store.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(query).fetchall()


def read_session_id(store: Path, key: str) -> str | None:
    """Read the id of the session that was opened under a key."""
    found = [row["session_id"] for row in _rows(store, "SELECT session_id, key FROM sessions") if row["key"] == key]
    return found[0] if found else None


def read_calls(store: Path) -> list[StoredCall]:
    """Read the calls of a store file."""
    query = "SELECT calls.*, substitutes.element FROM calls LEFT JOIN substitutes ON substitutes.call = calls.id"
    return [
        StoredCall(
            key=(row["session_id"], row["turn_id"], row["call_id"]),
            state=row["state"],
            outcome_kind=row["outcome_kind"],
            outcome=row["outcome"],
            outcome_hash=row["outcome_hash"],
            substitute=row["element"],
            submit_epoch=row["submit_epoch"],
            hold_until=row["hold_until"],
        )
        for row in _rows(store, query)
    ]


def read_steps(store: Path) -> list[Step]:
    """Read the timelines of all calls of a store file."""
    query = (
        "SELECT calls.session_id, calls.turn_id, calls.call_id, transitions.* FROM transitions "
        "JOIN calls ON calls.id = transitions.call ORDER BY transitions.call, transitions.seq"
    )
    return [
        Step(
            key=(row["session_id"], row["turn_id"], row["call_id"]),
            seq=row["seq"],
            source=row["source"],
            target=row["target"],
            attempt=row["attempt"],
            pid=row["pid"],
        )
        for row in _rows(store, query)
    ]
