"""`answerback tail`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json_line


def _line(entry: dict[str, Any]) -> str:
    """Return one entry as a person reads it."""
    time = str(entry.get("at", ""))[11:23]
    match entry.get("type"):
        case "call":
            outcome = f" {entry['outcome']}" if entry["outcome"] else ""
            why = f"  ({entry['reason']})" if entry["reason"] else ""
            said = f"{entry['id']}  {entry['tool']:<20} {entry['state']}{outcome}{why}"
        case "crash":
            said = f"actor crashed: {entry['reason']}"
        case _:
            said = str(entry.get("kind", entry.get("type", "")))
    return f"{time}  {entry.get('session_id') or '-'}  {said}"


@click.command("tail")
@click.option("--session", "session_id", metavar="SESSION", help="Only this session's, by its id.")
@click.option("--calls", "calls_only", is_flag=True, help="Only moves of calls.")
@store_option
@json_option
def command(path: Path, session_id: str | None, calls_only: bool, as_json: bool) -> None:
    """Follow what happens in the daemon of a store, live.

    One line for every move of a call and every event of a session, without arguments, results or texts. With --json
    each is a JSON object on a line of its own. Ends with the daemon.

    \b
    Examples:
      answerback tail --calls
      answerback tail --json --session sess_1
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.remote import daemon_of

    with daemon_of(path) as daemon, daemon.follow("/events") as entries:
        # On stderr, so that it is told from an entry: nothing that happens from here on is missed.
        click.echo(f"following the daemon of pid {daemon.address.pid}", err=True)
        for entry in entries:
            if session_id not in {None, entry.get("session_id")} or (calls_only and entry.get("type") != "call"):
                continue
            if as_json:
                print_json_line(entry)
            else:
                click.echo(_line(entry))
