"""Settings: a flag before the environment before the file before the default, and what each came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from answerback.daemon.cli import main, program
from answerback.daemon.settings import PARAMETERS, SECRET, STORE_COMMANDS


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of one's own, and no setting of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("ADMIN_HOST", "ADMIN_PORT", "APP", "APP_DIR", "CONFIG", "DB", "DRAIN_TIMEOUT", "LOG_FORMAT",
                 "LOG_LEVEL", "STANDBY"):  # fmt: skip
        monkeypatch.delenv(f"ANSWERBACK_{name}", raising=False)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_WEBHOOK_SECRET", "NO_COLOR", "PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class _Config:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, before: tuple[str, ...] = (), code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*before, "config", "--show", *arguments])
        out, err = self._capsys.readouterr()
        assert ended.value.code == code, out + err
        return out, err

    def shown(self, *arguments: str, before: tuple[str, ...] = ()) -> dict[str, tuple[Any, str]]:
        document = json.loads(self(*arguments, "--json", before=before)[0])
        assert set(document) == {"settings", "environment"}
        entries = document["settings"] + document["environment"]
        assert all(set(entry) == {"name", "value", "source"} for entry in entries)
        return {entry["name"]: (entry["value"], entry["source"]) for entry in entries}


@pytest.fixture
def config(capsys: pytest.CaptureFixture[str]) -> _Config:
    return _Config(capsys)


def test_every_setting_has_a_default(config: _Config) -> None:
    shown = config.shown()
    assert {name: shown[name][1] for name in PARAMETERS} == dict.fromkeys(PARAMETERS, "default")
    assert shown["db"] == ("answerback.db", "default")
    assert shown["drain_timeout"] == (25.0, "default")


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    config: _Config, monkeypatch: pytest.MonkeyPatch, alone: Path
) -> None:
    (alone / "answerback.toml").write_text('drain_timeout = 1\nadmin_port = 1001\ndb = "file.db"\nstandby = true\n')
    assert config.shown()["drain_timeout"] == (1.0, "file")
    monkeypatch.setenv("ANSWERBACK_DRAIN_TIMEOUT", "2")
    monkeypatch.setenv("ANSWERBACK_DB", "environment.db")
    shown = config.shown("--drain-timeout", "3")
    assert shown["drain_timeout"] == (3.0, "flag")
    assert shown["db"] == ("environment.db", "environment")
    assert shown["admin_port"] == (1001, "file")
    assert shown["standby"] == (True, "file")
    assert shown["log_level"] == ("info", "default")


def test_the_port_a_platform_gives_is_the_admins_unless_ours_is_set(
    config: _Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "8080")
    assert config.shown()["admin_port"] == (8080, "environment")
    monkeypatch.setenv("ANSWERBACK_ADMIN_PORT", "9100")
    assert config.shown()["admin_port"] == (9100, "environment")


def test_another_file_is_read_when_it_is_named(config: _Config, alone: Path) -> None:
    (alone / "answerback.toml").write_text("drain_timeout = 1\n")
    (alone / "other.toml").write_text("drain_timeout = 9\n")
    assert config.shown(before=("--config", "other.toml"))["drain_timeout"] == (9.0, "file")


@pytest.mark.parametrize("command", [("ls",), ("store", "info"), ("approve", "x"), ("tail",)])
def test_the_file_serves_other_commands_too(
    alone: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    (alone / "answerback.toml").write_text('db = "nowhere-else.db"\n')
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 3
    assert "nowhere-else.db" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("draintimeout = 1\n", "unknown setting 'draintimeout'"),
        ("drain_timeout = \n", "is no TOML"),
        ('drain_timeout = "long"\n', "drain-timeout"),
        ("admin_port = 70000\n", "admin-port"),
    ],
)
def test_a_file_that_makes_no_sense_exits_2_and_says_where(config: _Config, alone: Path, text: str, says: str) -> None:
    (alone / "answerback.toml").write_text(text)
    _, err = config(code=2)
    assert says in err


def test_a_file_that_is_named_and_missing_is_an_error(config: _Config) -> None:
    _, err = config(before=("--config", "gone.toml"), code=3)
    assert err == "answerback: there is no settings file gone.toml\n"


def test_every_command_of_the_group_store_takes_its_defaults_from_the_file() -> None:
    group = program.get_command(click.Context(program), "store")
    assert isinstance(group, click.Group)
    assert set(group.commands) == set(STORE_COMMANDS)


def test_no_secret_is_printed_only_whether_there_is_one(config: _Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRET, "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.setenv(name, "sk-canary")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:sk-canary@example.test/v1")
    shown = config.shown()
    assert shown["OPENAI_API_KEY"] == ("(set)", "environment")
    assert shown["NO_COLOR"] == (None, "not set")
    assert "sk-canary" not in config()[0]
    assert "sk-canary" not in json.dumps(shown)
