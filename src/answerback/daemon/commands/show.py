"""`answerback show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from answerback.daemon.journal import read
from answerback.daemon.options import json_option, store_option, values_option
from answerback.daemon.output import (
    call_facts,
    late_facts,
    payload,
    print_facts,
    print_json,
    print_table,
    session_facts,
    stamp,
    transition_facts,
)
from answerback.daemon.writing import session_of
from answerback.model import SessionRecord
from answerback.names import find_call, short_ids
from answerback.store.reader import SQLiteReader


async def _session(reader: SQLiteReader, session: SessionRecord, values: bool) -> dict[str, Any]:
    if session.session_id is None:
        return {"session": session_facts(session), "calls": [], "inputs": []}
    calls = await reader.calls(session_id=session.session_id, limit=1000)
    names = await short_ids(reader, calls)
    inputs = await reader.inputs(session.session_id)
    return {
        "session": session_facts(session),
        "calls": [call_facts(call, short=short, values=values) for call, short in zip(calls, names, strict=True)],
        "inputs": [
            {
                "key": one.key,
                "state": one.state,
                "turn_id": one.turn_id,
                "reason": one.reason,
                "created_at": stamp(one.created_at),
                "message": payload(one.element, values=values),
            }
            for one in inputs
        ],
    }


async def _call(reader: SQLiteReader, name: str, values: bool) -> dict[str, Any]:
    call = await find_call(reader, name)
    checkpoints = await reader.checkpoints(call.key)
    return {
        "call": call_facts(call, short=(await short_ids(reader, [call]))[0], values=values),
        "transitions": [transition_facts(step) for step in await reader.transitions(call.key)],
        "checkpoints": {fact: payload(value, values=values) for fact, value in checkpoints.items()},
        "late": [late_facts(late, values=values) for late in await reader.late(call.key)],
    }


async def _find(reader: SQLiteReader, name: str, values: bool) -> dict[str, Any]:
    session = await session_of(reader, name)
    return await (_call(reader, name, values) if session is None else _session(reader, session, values))


def _print_session(found: dict[str, Any]) -> None:
    print_facts(found["session"])
    if found["inputs"]:
        click.echo("\ninputs")
        columns = ["key", "state", "turn_id", "created_at", "message"]
        print_table(columns, [[str(one[column] or "-") for column in columns] for one in found["inputs"]])
    if found["calls"]:
        click.echo("\ncalls")
        columns = ["id", "name", "state", "outcome", "attempt", "observed_at"]
        print_table(columns, [[str(one[column] or "-") for column in columns] for one in found["calls"]])


def _print_call(found: dict[str, Any]) -> None:
    print_facts(found["call"])
    click.echo("\ntransitions")
    print_table(
        ("AT", "FROM", "TO", "ATTEMPT", "LIFE", "PID", "WHY"),
        [
            (
                step["at"] or "-",
                step["source"] or "-",
                step["target"],
                str(step["attempt"]),
                str(step["incarnation"]),
                str(step["pid"]),
                step["reason"] or "",
            )
            for step in found["transitions"]
        ],
    )
    if found["checkpoints"]:
        click.echo("\ncheckpoints")
        print_facts(found["checkpoints"])
    for late in found["late"]:
        click.echo("\nreturned too late (recorded, never sent)")
        print_facts(late)


@click.command("show")
@click.argument("name", metavar="SESSION|CALL")
@values_option
@store_option
@json_option
def command(path: Path, name: str, values: bool, as_json: bool) -> None:
    """Show one session or one call in full.

    A session is named by its id or its key, a call by the start of its public id or by its call_id.

    \b
    Examples:
      answerback show ticket-4711
      answerback show 3fa9c1 --values
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    found = read(path, lambda reader: _find(reader, name, values))
    if as_json:
        print_json(found)
    elif "session" in found:
        _print_session(found)
    else:
        _print_call(found)
