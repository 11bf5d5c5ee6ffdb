"""`answerback doctor`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from answerback.daemon.exits import FAILED
from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json
from answerback.daemon.settings import app_dir_option

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from answerback.daemon.checks import Check

_SIGNS = {"ok": "ok", "warning": "warning", "failed": "FAILED"}


def _client(app: str | None, app_dir: Path) -> AsyncOpenAI:
    """Return the client the app would use, or the one of the environment."""
    from openai import AsyncOpenAI

    if app is None:
        return AsyncOpenAI()
    from answerback.daemon.apps import load_app

    return load_app(app, app_dir=app_dir).make_client()


@click.command("doctor")
@click.option("--app", envvar="ANSWERBACK_APP", metavar="APP", help="Check with the client of this app.")
@app_dir_option
@store_option
@json_option
def command(path: Path, app: str | None, app_dir: Path, as_json: bool) -> None:
    """Check what a daemon needs: Python, store, key, API, clock, disk.

    Exits 1 when a check failed. The key is never printed.

    \b
    Examples:
      answerback doctor
      answerback doctor --app bot:app --db calls.db --json
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.checks import examine

    found: list[Check] = []
    for check in examine(path, lambda: _client(app, app_dir)):
        found.append(check)
        if not as_json:
            click.echo(f"{_SIGNS[check.verdict]:<8} {check.name:<9} {check.detail}")
    failed = [check for check in found if check.verdict == "failed"]
    if as_json:
        facts = [{"name": one.name, "verdict": one.verdict, "detail": one.detail} for one in found]
        print_json({"ok": not failed, "checks": facts})
    if failed:
        sys.exit(FAILED)
