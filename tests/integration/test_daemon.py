"""`answerback up` as an operator meets it: real processes, TCP, signals and exit codes."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx2
import pytest

from answerback.daemon.address import address_path
from answerback.store.reader import lock_owner
from answerback.wire import inputs
from daemon_rig import Rig, following, in_background, in_state, rig, until


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Rig]:
    with rig(tmp_path) as one:
        yield one


def _intact(store: Path) -> None:
    connection = sqlite3.connect(store)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        connection.close()


def _draining(url: str) -> None:
    """Return once it says that it is not ready any more: the signal was heard."""
    while httpx2.get(f"{url}/readyz").status_code != 503:
        pass


# Serving


def test_it_answers_calls_and_sigterm_lets_the_running_one_finish_with_streams_open(bench: Rig) -> None:
    up = bench.up("--drain-timeout", "30").served()
    with up.remote() as daemon, following(daemon) as entries:
        in_background(lambda: daemon.post("/sessions", {"key": "k", "text": "hold"}))
        session_id = bench.entered(entries)
        with daemon.follow(f"/sessions/{session_id}/events"):
            up.send(signal.SIGTERM)
            _draining(daemon.address.url)
            assert httpx2.get(f"{daemon.address.url}/livez").status_code == 200
            began = time.monotonic()
            bench.release("a")
            # Finished, stored and sent before it ends; the streams that are open hold nothing up.
            assert until(entries, in_state("submitted"))["outcome"] == "ok"
            assert up.ended() == 0
            assert time.monotonic() - began < 5
    assert up.line() == {"drained": {"clean": True, "cut_short": 0, "unsent": 0}}
    assert not address_path(bench.store).exists()
    assert lock_owner(bench.store) is None
    _intact(bench.store)


def test_what_becomes_pending_while_it_drains_is_left_for_the_next_start(bench: Rig) -> None:
    up = bench.up("--drain-timeout", "30").served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "one", "text": "hold"})
        bench.entered(entries)
        created = daemon.post("/sessions", {"key": "two", "text": "hello"})["session"]["session_id"]
        daemon.post("/sessions/two/wait")
        up.send(signal.SIGTERM)
        headers = {"Content-Type": "application/json", "OpenAI-Beta": "agents=v1", "Authorization": "Bearer local"}
        body = inputs.body([inputs.message("hold")])
        url = f"{bench.api.base_url}/agents/sessions/{created}/events"
        assert httpx2.post(url, content=body, headers=headers).status_code == 202
        bench.release("a")
        assert up.ended() == 0
    assert len(bench.effects) == 1
    again = bench.up().served()
    with again.remote() as daemon:
        daemon.post("/sessions/two/wake")
        while len(bench.effects) < 2 or daemon.get("/healthz")["calls"]["open"]:
            pass
    (call,) = bench.json("calls", "--session", created)["calls"]
    assert (call["name"], call["outcome"], call["submit_status"]) == ("hold", "ok", "accepted")


def test_patience_that_ends_cuts_the_handler_and_exits_4(bench: Rig) -> None:
    up = bench.up("--drain-timeout", "0.3").served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": "hold"})
        bench.entered(entries)
        up.send(signal.SIGTERM)
        assert up.ended() == 4
    assert up.line() == {"drained": {"clean": False, "cut_short": 1, "unsent": 0}}
    (call,) = bench.json("calls")["calls"]
    assert call["state"] == "indeterminate"
    _intact(bench.store)


@pytest.mark.parametrize("word", ["hold", "block"])
def test_a_second_signal_ends_it_within_a_second_whatever_runs(bench: Rig, word: str) -> None:
    up = bench.up("--drain-timeout", "60").served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": word})
        bench.entered(entries)
        up.send(signal.SIGTERM)
        _draining(daemon.address.url)
        began = time.monotonic()
        assert up.send(signal.SIGTERM).ended() == 4
        assert time.monotonic() - began < 1.5
    (call,) = bench.json("calls")["calls"]
    # What heeds a cancellation is marked; of what does not, the next start sees that its process is gone.
    assert call["state"] == ("indeterminate" if word == "hold" else call["state"])
    assert call["state"] in {"indeterminate", "started"}
    assert not address_path(bench.store).exists()
    assert lock_owner(bench.store) is None
    _intact(bench.store)


def test_a_third_signal_ends_it_at_once(bench: Rig) -> None:
    up = bench.up("--drain-timeout", "60").served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": "block"})
        bench.entered(entries)
        up.send(signal.SIGTERM)
        _draining(daemon.address.url)
        up.send(signal.SIGTERM)
        while "hurrying" not in up.log:
            assert up.process.poll() is None
        began = time.monotonic()
        up.send(signal.SIGTERM)
        assert up.ended() == 4
        assert time.monotonic() - began < 0.5


def test_drain_can_be_asked_of_the_admin(bench: Rig) -> None:
    up = bench.up().served()
    with up.remote() as daemon:
        assert daemon.post("/drain") == {"draining": True}
    assert up.ended() == 0


def test_it_lives_and_ends_without_an_api(bench: Rig) -> None:
    up = bench.up(environment={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}).served()
    url = bench.address().url
    assert httpx2.get(f"{url}/livez").status_code == 200
    assert httpx2.get(f"{url}/readyz").status_code == 200
    assert up.send(signal.SIGTERM).ended() == 0


def test_sigint_is_a_drain_too_also_where_the_loop_watches_no_signals(bench: Rig) -> None:
    code = (
        "import asyncio, sys\n"
        "def refuse(*_): raise NotImplementedError\n"
        "asyncio.SelectorEventLoop.add_signal_handler = refuse\n"
        "from answerback.daemon.cli import main\n"
        "main(['up', 'bot:app', '--json'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=bench.folder, env=bench.environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert "serving" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "signals are limited" in said


def test_usr1_tells_what_goes_on_in_one_json_line_without_values(bench: Rig) -> None:
    up = bench.up().served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": "hold"})
        bench.entered(entries)
        up.send(signal.SIGUSR1)
        while '"event": "dump"' not in up.log:
            daemon.get("/healthz")
    (line,) = [line for line in up.log.splitlines() if '"event": "dump"' in line]
    dump = json.loads(line)
    assert dump["pid"] == up.pid
    assert [call["tool"] for call in dump["calls"]] == ["hold"]
    assert [actor["open_calls"] for actor in dump["actors"]] == [1]
    assert "answerback hold" in [task["name"] for task in dump["tasks"]]


# Two of them


def test_a_second_daemon_exits_3_and_names_the_owner(bench: Rig) -> None:
    first = bench.up().served()
    line = bench.refused("up", "bot:app", code=3)
    assert f"pid {first.pid}" in line
    assert "locked" in line


def test_one_that_stands_by_takes_over_within_two_seconds_of_a_kill(bench: Rig) -> None:
    first = bench.up().served()
    second = bench.up("--standby")
    while "standing by" not in second.log:
        assert second.process.poll() is None
        bench.address()
    with first.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": "hold"})
        bench.entered(entries)
        began = time.monotonic()
        first.send(signal.SIGKILL)
        second.served()
        taken = time.monotonic() - began
    assert taken < 2
    assert bench.address().pid == second.pid
    with second.remote() as daemon:
        # What the first one started is not started again: nobody knows what it did. What comes new is run here.
        assert daemon.get("/healthz")["store"]["incarnation"] == 2
        while "indeterminate" not in daemon.get("/healthz")["calls"]["open"]:
            pass
        bench.json("decide", bench.json("calls")["calls"][0]["id"], "--happened", '"it was held"')
        assert daemon.post("/sessions/k/wait")["output_text"] == "it was held"
        bench.release("a")
        assert daemon.post("/sessions/k/messages", {"text": "hold"})["output_text"] == "held a (one)"
    assert [line.split()[0] for line in bench.effects] == [str(first.pid), str(second.pid)]


def test_one_that_stands_by_ends_with_0_when_it_is_told_to(bench: Rig) -> None:
    bench.up().served()
    second = bench.up("--standby")
    while "standing by" not in second.log:
        assert second.process.poll() is None
    assert second.send(signal.SIGTERM).ended() == 0


def test_what_a_killed_daemon_left_behind_misleads_nobody(bench: Rig) -> None:
    bench.up().served().send(signal.SIGKILL).ended()
    assert address_path(bench.store).exists()
    assert "no daemon runs for" in bench.refused("tail", code=3)
    again = bench.up().served()
    assert bench.address().pid == again.pid


# New code


def test_hup_loads_new_code_and_the_running_call_finishes_on_the_old(bench: Rig) -> None:
    up = bench.up("--drain-timeout", "30").served()
    with up.remote() as daemon, following(daemon) as entries:
        daemon.post("/sessions", {"key": "k", "text": "hold"})
        bench.entered(entries)
        code = (bench.folder / "bot.py").read_text()
        (bench.folder / "bot.py").write_text(code.replace('"one"', '"two"'))
        up.send(signal.SIGHUP)
        _draining(daemon.address.url)
        bench.release("a")
    assert up.line() == {"reloading": {"pid": up.pid}}
    up.served()
    with up.remote() as daemon:
        assert daemon.post("/sessions/k/wait")["output_text"] == "held a (one)"
        assert daemon.post("/sessions/k/messages", {"text": "weather"})["output_text"] == "sunny in Oslo (two)"
    assert up.send(signal.SIGTERM).ended() == 0


def test_code_that_cannot_be_imported_is_not_loaded_and_stops_nothing(bench: Rig) -> None:
    up = bench.up().served()
    (bench.folder / "bot.py").write_text("def broken(:\n")
    up.send(signal.SIGHUP)
    with up.remote() as daemon:
        while "not reloaded" not in up.log:
            daemon.get("/healthz")
        assert "SyntaxError" in up.log
        daemon.post("/sessions", {"key": "k", "text": "weather"})
        assert daemon.post("/sessions/k/wait")["output_text"] == "sunny in Oslo (one)"


# What does not start


@pytest.mark.parametrize(
    ("app", "code", "says"),
    [
        ("nobody:app", 3, "No module named 'nobody'"),
        ("bot:nothing", 3, "bot has no 'nothing'"),
        ("bot:here", 3, "it must be an answerback App or Handlers"),
        ("empty.py:handlers", 3, "has no handlers"),
        ("broken.py", 3, "ValueError: not today (broken.py:1)"),
    ],
)
def test_an_app_that_cannot_be_served_is_one_line(bench: Rig, app: str, code: int, says: str) -> None:
    (bench.folder / "empty.py").write_text("from answerback import Handlers\nhandlers = Handlers()\n")
    (bench.folder / "broken.py").write_text("raise ValueError('not today')\n")
    assert says in bench.refused("up", app, code=code)
    assert not (bench.folder / "calls.db").exists()


@pytest.mark.parametrize("arguments", [("up",), ("up", ":app"), ("up", "bot:app", "--nonsense"), ("up", "a:b:c")])
def test_a_command_line_that_makes_no_sense_exits_2(bench: Rig, arguments: tuple[str, ...]) -> None:
    done = bench.run(*arguments)
    assert done.returncode == 2
    assert "Usage: answerback up" in done.stderr


def test_a_port_that_is_taken_is_one_line_and_exits_3(bench: Rig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = bench.refused("up", "bot:app", "--admin-port", port, code=3)
    assert f"127.0.0.1:{port}: Address already in use" in line


def test_no_api_key_is_one_line_and_exits_3(bench: Rig) -> None:
    done = bench.run("up", "bot:app", OPENAI_API_KEY="")
    assert done.returncode == 3
    assert done.stderr == (
        "answerback: there is no API key: set OPENAI_API_KEY, or give the App a client of its own (client=...)\n"
    )


def test_a_file_that_is_no_store_is_one_line_and_exits_3(bench: Rig) -> None:
    bench.store.write_text("this is a letter\n" * 100)
    line = bench.refused("up", "bot:app", code=3)
    assert "calls.db" in line
