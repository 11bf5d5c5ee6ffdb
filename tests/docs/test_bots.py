"""The page about bots, followed as a newcomer would: its commands, its transcript, its table of settings."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from doc_pages import blocks_of
from example_run import EXAMPLES, LocalApi, local_api
from source_tree import ROOT

PAGE = ROOT / "docs" / "bots.md"
BOTS = EXAMPLES / "bots"


def _commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks_of(PAGE, "sh") for line in block.text.splitlines()]


@contextmanager
def _shown_program(
    command: list[str], folder: Path, api: LocalApi, stdin: int = subprocess.DEVNULL
) -> Generator[subprocess.Popen[str]]:
    """Run a command that the page shows, `uv run python FILE ...`, in a folder of its own."""
    assert command[:3] == ["uv", "run", "python"]
    program = [sys.executable, str(ROOT / command[3]), *command[4:]]
    with subprocess.Popen(
        # A slower shop, so that every line of progress is seen on a busy machine too.
        program,
        cwd=folder,
        env={**api.environment, "SHOP_SECONDS": "2"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def test_the_terminal_bot_says_what_the_page_shows(tmp_path: Path) -> None:
    harness, exported, terminal = _commands()[:3]
    assert harness == shlex.split("uv run answerback harness --port 8321 --script examples/bots/script.yaml")
    assert exported == ["export", "OPENAI_BASE_URL=http://127.0.0.1:8321/v1", "OPENAI_API_KEY=local"]
    (shown,) = blocks_of(PAGE, "text")
    keyboard, typed = pty.openpty()
    try:
        with local_api(ROOT / harness[-1]) as api, _shown_program(terminal, tmp_path, api, stdin=typed) as process:
            assert process.stdout is not None
            call = ""
            for line in shown.text.splitlines():
                if line.startswith(("pack", "refund A-18", "/yes")):
                    os.write(keyboard, f"{line.replace('6ff95d51', call)}\n".encode())
                    continue
                said = process.stdout.readline().rstrip("\n")
                name = re.search(r"/yes (\w{8}) ", said)
                call = name[1] if name else call
                assert (said.replace(call, "6ff95d51") if call else said) == line
            os.write(keyboard, b"\x04")  # Ctrl-D
            assert process.stdout.read() == ""
            assert process.wait(10) == 0
    finally:
        os.close(keyboard)
        os.close(typed)


def test_the_web_bot_is_where_the_page_says(tmp_path: Path) -> None:
    command = next(words for words in _commands() if words[-1].endswith("web.py"))
    with local_api(BOTS / "script.yaml") as api, _shown_program(command, tmp_path, api) as process:
        assert process.stdout is not None
        greeting = process.stdout.readline().strip()
        assert f"`{greeting}`" in PAGE.read_text(encoding="utf-8")
        transport = httpx2.HTTPTransport(retries=6)
        with httpx2.Client(transport=transport) as browser:
            assert "<h1>Shop bot</h1>" in browser.get(greeting.removeprefix("open ")).text


def test_a_file_of_questions_is_answered_by_the_command_the_page_shows(tmp_path: Path) -> None:
    command = next(words for words in _commands() if "--resume" in words)
    place = command.index("<")
    (tmp_path / command[place + 1]).write_text("hello\nagain\n", encoding="utf-8")
    with (
        local_api(BOTS / "script.yaml") as api,
        (tmp_path / command[place + 1]).open() as questions,
        _shown_program(command[:place], tmp_path, api, stdin=questions.fileno()) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read() == "You said: hello\nYou said: again\n"


def test_the_other_commands_name_programs_and_variables_that_exist() -> None:
    shown = [words for words in _commands() if words[-1].endswith("_bot.py")]
    assert {Path(words[-1]).name for words in shown} == {"slack_bot.py", "telegram_bot.py"}
    for words in shown:
        source = (ROOT / words[-1]).read_text(encoding="utf-8")
        names = [word.partition("=")[0] for word in words if "=" in word]
        assert names
        assert all(f'os.environ["{name}"]' in source for name in names)


def test_the_table_of_settings_has_every_variable_the_bots_read_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("## Settings")[2].partition("\n\nOne process")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    shown = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    read: set[str] = set()
    for file in BOTS.rglob("*.py"):
        read |= set(re.findall(r"environ(?:\.get\(|\[)\"([A-Z_]+)\"", file.read_text(encoding="utf-8")))
    assert shown == (read - {"USER"}) | {"OPENAI_API_KEY", "OPENAI_BASE_URL"}


def test_the_limits_and_the_groups_the_page_names_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "limit = 4000" in (BOTS / "slack_bot.py").read_text(encoding="utf-8")
    assert "4,000 escaped characters on Slack, 4,096 UTF-16 units on Telegram" in text
    assert json.dumps("python-telegram-bot")[:-1] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
