"""`answerback ls`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from answerback.daemon.journal import read
from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json, print_table, session_facts
from answerback.store.reader import SQLiteReader


async def _sessions(reader: SQLiteReader, limit: int) -> list[dict[str, Any]]:
    return [
        session_facts(session)
        | {"open_calls": len(await reader.open_calls(session.session_id)) if session.session_id else 0}
        for session in await reader.sessions(limit=limit)
    ]


@click.command("ls")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="How many, newest first.")
@store_option
@json_option
def command(path: Path, limit: int, as_json: bool) -> None:
    """List the sessions of a store.

    \b
    Example:
      answerback ls --db calls.db
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    sessions = read(path, lambda reader: _sessions(reader, limit))
    if as_json:
        print_json({"sessions": sessions})
        return
    rows = [
        (one["session_id"] or "(not confirmed)", one["key"] or "-", one["status"] or "-", one["state"])
        for one in sessions
    ]
    print_table(
        ("SESSION", "KEY", "STATUS", "STATE", "OPEN CALLS"),
        [(*row, str(one["open_calls"])) for row, one in zip(rows, sessions, strict=True)],
    )
