"""`answerback chat`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.settings import app_dir_option


@click.command("chat")
@click.argument("session", default="chat", metavar="[SESSION]")
@click.option(
    "--app", envvar="ANSWERBACK_APP", metavar="APP", help="Serve this app meanwhile, if no daemon has the store."
)
@click.option("--values", is_flag=True, help="Show the arguments of calls that wait for an approval.")
@app_dir_option
@store_option
@json_option
def command(path: Path, session: str, app: str | None, app_dir: Path, values: bool, as_json: bool) -> None:
    """Talk to a session in the terminal.

    SESSION is an id or a key; a key nobody has yet opens a session with the agent of the app. The daemon of the store
    does the work, so that a chat can be left and taken up again. A line is a message; an empty one is skipped,
    Ctrl-C cancels the turn that runs, Ctrl-D leaves. With --json every event is a JSON object on a line of its own.

    \b
    Examples:
      answerback chat ticket-4711
      answerback chat --app bot:app
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.chatting import Chat, Screen
    from answerback.daemon.companion import serving_for

    if sys.stdin.isatty():
        # Line editing and history: `input` uses them once this is imported.
        importlib.import_module("readline")

    with serving_for(path, app=app, app_dir=app_dir) as daemon:
        Chat(daemon, session, screen=Screen(as_json=as_json), store=path, values=values).run()
