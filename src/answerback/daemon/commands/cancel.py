"""`answerback cancel`."""

from __future__ import annotations

from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json


@click.command("cancel")
@click.argument("name", metavar="SESSION")
@store_option
@json_option
def command(path: Path, name: str, as_json: bool) -> None:
    """Ask the server to cancel a session's open turn.

    The daemon of the store asks; completion may still be faster.

    \b
    Example:
      answerback cancel ticket-4711
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.remote import missing_daemon, path_of
    from answerback.daemon.writing import ask_daemon, find_session

    answer = ask_daemon(path, path_of("sessions", name, "cancel"))
    if answer is None:
        # A wrong name is said before a missing daemon: starting one would not help.
        find_session(path, name)
        raise missing_daemon(path)
    session = answer["session"]
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"{session['session_id']}: the server was asked to cancel its turn")
