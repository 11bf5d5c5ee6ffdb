"""`answerback resend`."""

from __future__ import annotations

from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json


@click.command("resend")
@click.argument("name", metavar="CALL")
@store_option
@json_option
def command(path: Path, name: str, as_json: bool) -> None:
    """Send the stored result of a call again.

    The same bytes under the same key; no handler runs. The daemon of the store sends.

    \b
    Example:
      answerback resend 3fa9c1
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.journal import read
    from answerback.daemon.remote import missing_daemon, path_of
    from answerback.daemon.writing import ask_daemon
    from answerback.names import find_call

    answer = ask_daemon(path, path_of("calls", name, "resend"))
    if answer is None:
        # A wrong name is said before a missing daemon: starting one would not help.
        read(path, lambda reader: find_call(reader, name))
        raise missing_daemon(path)
    call = answer["call"]
    if as_json:
        print_json({"call": call})
    else:
        click.echo(f"{call['id']} {call['name']}: sent again; it is {call['state']}")
