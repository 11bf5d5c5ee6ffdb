"""Completion as docs/cli.md tells to switch it on, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from answerback.daemon.cli import COMMANDS

BASH = """
eval "$(_ANSWERBACK_COMPLETE=bash_source answerback)"
complete -p answerback
COMP_WORDS=({words}); COMP_CWORD={position}; _answerback_completion answerback
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
eval "$(_ANSWERBACK_COMPLETE=zsh_source answerback)"
print -r -- "registered ${{_comps[answerback]}}"
# What a completion would show, without a terminal to show it on.
compadd() {{ local name=${{@[-1]}}; print -rl -- "${{(@P)name}}" }}
_describe() {{ print -rl -- "${{(@P)3}}" }}
words=({words}); CURRENT=$(( {position} + 1 ))
_answerback_completion
"""


def _complete(shell: str, script: str, words: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    position = len(words.split(" ")) - 1
    text = script.format(words=words.strip() + (' ""' if words.endswith(" ") else ""), position=position)
    # As a user has it: the program on the PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--norc", "--noprofile"] if shell == "bash" else ["-f"]
    done = subprocess.run(
        [shell, *options, "-c", text], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_the_program_completes_its_commands(shell: str) -> None:
    shown = _complete(shell, BASH if shell == "bash" else ZSH, "answerback d")
    assert "answerback" in shown.splitlines()[0]
    offered = {line.partition(":")[0] for line in shown.splitlines()[1:]}
    assert offered == {name for name in COMMANDS if name.startswith("d")}


def test_a_command_completes_its_options_and_choices(shell: str) -> None:
    script = BASH if shell == "bash" else ZSH
    assert "--standby" in _complete(shell, script, "answerback up --st")
    assert "waiting_approval" in _complete(shell, script, "answerback calls --state wait")
