"""The program as a whole: its help, its exit codes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from answerback import errors
from answerback.daemon.cli import COMMANDS, LazyGroup, main, program
from answerback.daemon.exits import RemoteError, StartError, exit_code


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def _present() -> list[str]:
    return LazyGroup().list_commands(click.Context(program))


def _loaded_by(*arguments: str) -> set[str]:
    code = (
        "import sys\n"
        "from answerback.daemon.cli import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "except SystemExit as ended:\n"
        "    assert ended.code == 0, ended.code\n"
        "print('LOADED', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.partition("LOADED")[2].split())


def test_help_names_every_command_and_imports_none_of_them() -> None:
    loaded = _loaded_by("--help")
    assert not loaded & {"openai", "pydantic", "anyio", "msgspec", "aiosqlite", "answerback.model", "answerback.store"}
    assert not [name for name in loaded if name.startswith("answerback.daemon.commands.")]


@pytest.mark.parametrize("name", [*COMMANDS])
def test_help_of_a_command_needs_neither_openai_nor_pydantic(name: str) -> None:
    if name not in _present():
        pytest.skip("this installation lacks it")
    assert not _loaded_by(name, "--help") & {"openai", "pydantic"}


def _leaves(capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Yield every command that does something itself, a group's own commands in its place."""
    for name in _present():
        _, out, _ = _run(capsys, name, "--help")
        inner = [
            line.split()[0]
            for line in out.partition("\nCommands:\n")[2].splitlines()
            if line.startswith("  ") and line[2:3].strip()
        ]
        yield from (f"{name} {one}" for one in inner) if inner else [name]


def test_every_command_tells_an_example_and_offers_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name in _leaves(capsys):
        code, out, _ = _run(capsys, *name.split(), "--help")
        assert code == 0
        assert "Example" in out, name
        assert f"answerback {name}" in out, name
        assert "--json" in out, name
        assert f"\n  answerback {name}" in out.replace("    ", "  "), "an example stands on its own line"
        assert "\\b" not in out


def test_the_line_of_a_command_in_the_help_is_its_own_first_sentence() -> None:
    context = click.Context(program)
    for name in _present():
        command = LazyGroup().get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == COMMANDS[name]


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "answerback", "version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("answerback  ")


def test_version_is_also_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "version", "--json")
    assert code == 0
    assert {"answerback", "python", "sqlite", "openai"} <= set(json.loads(out))


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("ls", "--nonsense"),
        ("show",),
        ("calls", "--state", "tired"),
        ("decide", "abc"),
        ("decide", "abc", "--unknown", "--happened"),
        ("decide", "abc", "--failed", "x", "--not-happened"),
        ("harness", "--set", "novalue"),
        ("harness", "--memory", "--state", "d"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Usage: answerback" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("calls",),
        ("show", "abc"),
        ("decide", "abc", "--unknown"),
        ("approve", "abc"),
        ("reject", "abc"),
        ("pause", "abc"),
        ("resume", "abc"),
        ("cancel", "abc"),
        ("resend", "abc"),
        ("tail",),
        ("chat",),
    ],
)
def test_a_missing_store_exits_3_says_so_in_one_line_and_makes_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSWERBACK_DB", "nowhere.db")
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert err.startswith("answerback: ")
    assert "nowhere.db" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreLockedError("held", path="a.db", owner="host a pid 1"), 3),
        (errors.StoreVersionError("newer"), 3),
        (StartError("no daemon"), 3),
        (RemoteError("no"), 1),
        (errors.ConfigurationError("bad"), 2),
        (errors.UnknownCallError("none"), 1),
        (errors.DecisionError("done"), 1),
    ],
)
def test_an_error_has_its_exit_code(error: errors.AnswerbackError, code: int) -> None:
    assert exit_code(error) == code
