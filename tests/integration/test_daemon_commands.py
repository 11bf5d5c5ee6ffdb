"""The commands beside a daemon, beside an embedded runtime, and on a store nobody has: real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from daemon_rig import CANARY, PATIENCE, Rig, Up, following, in_background, in_state, rig, until

CALL = {
    "type": "object",
    "required": ["id", "hash", "session_id", "turn_id", "call_id", "name", "state", "effects", "attempt", "outcome"],
    "properties": {
        "id": {"type": "string", "minLength": 6},
        "state": {"type": "string"},
        "attempt": {"type": "integer"},
    },
}
SESSION = {
    "type": "object",
    "required": ["session_id", "local_id", "key", "state", "status", "origin", "created_at"],
    "properties": {"session_id": {"type": ["string", "null"]}, "state": {"type": "string"}},
}
ENTRY = {
    "oneOf": [
        {
            "required": ["at", "type", "id", "tool", "state", "outcome", "session_id", "turn_id", "call_id", "reason"],
            "properties": {"type": {"const": "call"}},
        },
        {"required": ["at", "type", "session_id", "kind"], "properties": {"type": {"const": "event"}}},
        {"required": ["at", "type", "session_id", "reason"], "properties": {"type": {"const": "crash"}}},
    ]
}


def _fits(document: Any, schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid(document), document


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Rig]:
    with rig(tmp_path) as one:
        yield one


@pytest.fixture
def up(bench: Rig) -> Up:
    return bench.up().served()


def _waiting(bench: Rig, up: Up) -> str:
    """Return the id of a call that waits for an approval."""
    with up.remote() as daemon, following(daemon) as entries:
        in_background(lambda: daemon.post("/sessions", {"key": "k", "text": "pay"}))
        name: str = until(entries, in_state("waiting_approval"))["id"]
    return name


def _stopped_while_waiting(bench: Rig) -> str:
    up = bench.up().served()
    name = _waiting(bench, up)
    assert up.send(signal.SIGTERM).ended() == 0
    return name


# Approvals


@pytest.mark.parametrize(("verb", "state"), [("approve", "requested"), ("reject", "finished")])
def test_beside_a_daemon_it_is_asked_and_goes_on_at_once(bench: Rig, up: Up, verb: str, state: str) -> None:
    name = _waiting(bench, up)
    call = bench.json(verb, name, "--reason", "as discussed")["call"]
    _fits(call, CALL)
    assert call["state"] == state
    with up.remote() as daemon:
        assert daemon.post("/sessions/k/wait")["status"] == "completed"
    assert len(bench.effects) == (1 if verb == "approve" else 0)
    assert "not waiting for an approval" in bench.refused(verb, name, code=1)


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_on_a_store_nobody_has_it_is_written_and_the_next_start_acts_on_it(bench: Rig, verb: str) -> None:
    name = _stopped_while_waiting(bench)
    _fits(bench.json(verb, name, "--by", "ada")["call"], CALL)
    with bench.up().served().remote() as daemon:
        assert daemon.post("/sessions/k/wait")["status"] == "completed"
    assert len(bench.effects) == (1 if verb == "approve" else 0)
    steps = bench.json("show", name)["transitions"]
    assert any("by ada" in (step["reason"] or "") for step in steps)


@pytest.mark.parametrize("verb", ["approve", "reject", "decide"])
def test_beside_an_embedded_runtime_it_says_which_process_to_ask(bench: Rig, verb: str) -> None:
    name = _stopped_while_waiting(bench)
    code = (
        "import sys, anyio\n"
        "from answerback.store.sqlite import SQLiteStore\n"
        "async def hold():\n"
        "    async with SQLiteStore('calls.db'):\n"
        "        print('ready', flush=True)\n"
        "        await anyio.to_thread.run_sync(sys.stdin.read)\n"
        "anyio.run(hold)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=bench.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        line = bench.refused(verb, name, *(["--unknown"] if verb == "decide" else []), code=3)
        session = bench.refused("pause", "k", code=3)
        tailing = bench.refused("tail", code=3)
        owner.communicate("", timeout=PATIENCE)
    assert f"pid {owner.pid}" in line
    assert f"runtime.{verb}(" in line
    assert "runtime.pause(" in session
    assert f"pid {owner.pid}" in tailing


# Sessions


def test_a_session_is_paused_and_resumed_beside_a_daemon_and_without_one(bench: Rig, up: Up) -> None:
    with up.remote() as daemon:
        daemon.post("/sessions", {"key": "k", "text": "hello"})
        daemon.post("/sessions/k/wait")
    for _ in range(2):
        session = bench.json("pause", "k")["session"]
        _fits(session, SESSION)
        assert session["state"] == "paused"
        assert bench.json("show", "k")["session"]["state"] == "paused"
        assert bench.json("resume", "k")["session"]["state"] == "open"
        if up.process.poll() is None:
            assert up.send(signal.SIGTERM).ended() == 0


def test_a_pause_written_without_a_daemon_is_kept_by_the_next(bench: Rig) -> None:
    name = _stopped_while_waiting(bench)
    bench.json("pause", "k")
    bench.json("approve", name)
    with bench.up().served().remote() as daemon:
        daemon.post("/sessions/k/wake")
        assert bench.effects == []
        bench.json("resume", "k")
        assert daemon.post("/sessions/k/wait")["status"] == "completed"
    assert len(bench.effects) == 1


def test_a_turn_is_cancelled_and_a_result_sent_again(bench: Rig, up: Up) -> None:
    _waiting(bench, up)
    _fits(bench.json("cancel", "k")["session"], SESSION)
    with up.remote() as daemon:
        assert daemon.post("/sessions/k/wait")["status"] == "cancelled"
        daemon.post("/sessions/k/messages", {"text": "weather"})
    (sent,) = [call for call in bench.json("calls")["calls"] if call["name"] == "look"]
    call = bench.json("resend", sent["id"])["call"]
    _fits(call, CALL)
    assert call["id"] == sent["id"]


@pytest.mark.parametrize("verb", ["cancel", "resend"])
def test_what_only_a_daemon_can_do_says_so_without_one(bench: Rig, verb: str) -> None:
    name = _stopped_while_waiting(bench)
    line = bench.refused(verb, "k" if verb == "cancel" else name, code=3)
    assert f"no daemon runs for {bench.store}; start one with `answerback up APP" in line


# Live


@pytest.mark.parametrize("options", [("--json",), ("--calls",)])
def test_tail_tells_a_call_s_life_until_the_daemon_ends(bench: Rig, up: Up, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "answerback", "tail", "--db", str(bench.store), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=bench.environment
    ) as tail:
        assert tail.stderr is not None
        assert tail.stderr.readline() == f"following the daemon of pid {up.pid}\n"
        with up.remote() as daemon:
            daemon.post("/sessions", {"key": "k", "text": "weather"})
            daemon.post("/sessions/k/wait")
        up.send(signal.SIGTERM)
        told, said = tail.communicate(timeout=PATIENCE)
    assert (tail.returncode, said) == (0, "")
    assert "Oslo" not in told
    if options == ("--json",):
        entries = [json.loads(line) for line in told.splitlines()]
        for entry in entries:
            _fits(entry, ENTRY)
        states = [entry["state"] for entry in entries if entry["type"] == "call"]
    else:
        states = [line.split()[4] for line in told.splitlines()]
    assert states[:3] == ["requested", "started", "finished"]


def test_chat_talks_through_the_daemon_and_takes_a_session_up_again(bench: Rig, up: Up) -> None:
    done = bench.run("chat", "ticket", typed="what is the weather\n\nhi\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "sunny in Oslo (one)\nYou said: hi\n"
    lines = [json.loads(line) for line in bench.run("chat", "ticket", "--json", typed="more\n").stdout.splitlines()]
    assert lines[-1]["type"] == "turn"
    assert set(lines[-1]) == {"type", "turn_id", "status", "output_text", "error"}
    assert "".join(line["text"] for line in lines if line["type"] == "delta") == "You said: more"
    assert len(bench.json("ls")["sessions"]) == 1


def test_chat_serves_the_app_meanwhile_when_nobody_does(bench: Rig) -> None:
    done = bench.run("chat", "--app", "bot:app", typed="what is the weather\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sunny in Oslo (one)\n"
    assert "no daemon runs" in bench.refused("tail", code=3)


def test_chat_shows_what_waits_for_an_approval_and_its_arguments_only_when_asked(bench: Rig, up: Up) -> None:
    for values in ((), ("--values",)):
        key = f"k{len(values)}"
        with subprocess.Popen(
            [sys.executable, "-m", "answerback", "chat", key, "--db", str(bench.store), *values],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=bench.environment,
        ) as chat:  # fmt: skip
            assert chat.stdin is not None
            assert chat.stdout is not None
            chat.stdin.write("pay\n")
            chat.stdin.close()
            asked = [chat.stdout.readline() for _ in range(3)]
            assert (CANARY in asked[1]) is bool(values)
            assert "pay waits for your approval" in asked[1]
            bench.json("approve", asked[2].split()[2].strip(","))
            assert chat.stdout.read().strip() == f"paid with {CANARY}"
            assert chat.wait(PATIENCE) == 0


def test_dev_serves_an_app_on_a_local_api_and_loads_it_anew(bench: Rig) -> None:
    environment = {**bench.environment, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    command = [sys.executable, "-m", "answerback", "dev", "bot.py", "--script", "script.yaml", "--json"]
    with subprocess.Popen(
        [*command, "--db", str(bench.store)], cwd=bench.folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as dev:
        try:
            assert dev.stdout is not None
            facts = json.loads(dev.stdout.readline())["serving"]
            assert set(facts) == {
                "agents_api", "harness", "admin", "token_file", "store", "store_bytes", "sessions", "handlers",
                "watching", "files", "pid",
            }  # fmt: skip
            assert {"name": "hold", "effects": "once"} in facts["handlers"]
            assert bench.run("chat", typed="weather\n").stdout == "sunny in Oslo (one)\n"
            code = (bench.folder / "bot.py").read_text()
            (bench.folder / "bot.py").write_text(code.replace('"one"', '"two"'))
            while "serving" not in json.loads(dev.stdout.readline()):
                pass
            assert bench.run("chat", typed="weather\n").stdout == "sunny in Oslo (two)\n"
            dev.send_signal(signal.SIGINT)
            last = dev.stdout.read().splitlines()[-1]
            assert json.loads(last) == {"drained": {"clean": True, "cut_short": 0, "unsent": 0}}
            assert dev.wait(PATIENCE) == 0
        finally:
            dev.kill()


def test_no_app_outlives_the_dev_that_started_it(bench: Rig) -> None:
    command = [sys.executable, "-m", "answerback", "dev", "bot.py", "--json", "--db", str(bench.store)]
    with subprocess.Popen(command, cwd=bench.folder, env=bench.environment, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        dev.stdout.readline()
        bench.address()
        dev.kill()
        dev.wait(PATIENCE)
        # It writes its last line into a pipe nobody reads any more; what counts is that the store is free.
        while bench.run("tail").returncode != 3:
            pass


# Doctor


def test_doctor_finds_all_well_beside_a_daemon(bench: Rig, up: Up) -> None:
    report = bench.json("doctor", "--app", "bot:app")
    assert set(report) == {"ok", "checks"}
    assert all(set(check) == {"name", "verdict", "detail"} for check in report["checks"])
    found = {check["name"]: check for check in report["checks"]}
    assert report["ok"] is True
    assert {"python", "versions", "store", "lock", "disk", "key", "api", "clock"} == set(found)
    assert f"pid {up.pid}" in found["lock"]["detail"]
    assert "a daemon at http://127.0.0.1:" in found["lock"]["detail"]
    assert found["clock"]["verdict"] == "ok"
    assert "ok" in bench.run("doctor").stdout


@pytest.mark.parametrize(
    ("environment", "name", "says"),
    [
        ({"OPENAI_API_KEY": ""}, "key", "no API key"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, "api", "no answer from http://127.0.0.1:9/v1/"),
    ],
)
def test_doctor_exits_1_and_says_what_is_wrong(bench: Rig, environment: dict[str, str], name: str, says: str) -> None:
    done = bench.run("doctor", "--json", **environment)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    (failed,) = [check for check in report["checks"] if check["verdict"] == "failed"]
    assert failed["name"] == name
    assert says in failed["detail"]


def test_doctor_never_prints_the_key(bench: Rig) -> None:
    done = bench.run("doctor", OPENAI_API_KEY="sk-canary", OPENAI_BASE_URL="http://u:sk-canary@127.0.0.1:9/v1")
    assert "sk-canary" not in done.stdout + done.stderr
