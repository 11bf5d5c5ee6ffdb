"""`answerback version`."""

from __future__ import annotations

import platform
import sqlite3
from importlib import metadata

import click

from answerback.daemon.options import json_option
from answerback.daemon.output import print_facts, print_json

STANDS_ON = ("openai", "anyio", "pydantic", "msgspec", "aiosqlite")


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Print the versions of answerback and what it stands on.

    \b
    Example:
      answerback version --json
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    versions = {"answerback": metadata.version("answerback"), "python": platform.python_version()}
    versions |= {"sqlite": sqlite3.sqlite_version} | {name: metadata.version(name) for name in STANDS_ON}
    (print_json if as_json else print_facts)(versions)
