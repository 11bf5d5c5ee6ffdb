"""`answerback resume`."""

from __future__ import annotations

from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json


@click.command("resume")
@click.argument("name", metavar="SESSION")
@store_option
@json_option
def command(path: Path, name: str, as_json: bool) -> None:
    """Go on with a session that was paused or set aside.

    The daemon reads it at once; without one, the next start does.

    \b
    Example:
      answerback resume ticket-4711
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.writing import change_session

    session = change_session(path, name, "resume", target="open")
    if as_json:
        print_json({"session": session})
    else:
        click.echo(f"{session['session_id']}: {session['state']}")
