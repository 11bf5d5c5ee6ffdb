"""`answerback pause`."""

from __future__ import annotations

from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json


@click.command("pause")
@click.argument("name", metavar="SESSION")
@store_option
@json_option
def command(path: Path, name: str, as_json: bool) -> None:
    """Take no new calls of a session until it is resumed.

    Handlers that run go on; what they return is stored. Stays so across restarts.

    \b
    Example:
      answerback pause ticket-4711
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.writing import change_session

    session = change_session(path, name, "pause", target="paused")
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"{session['session_id']}: {session['state']}")
