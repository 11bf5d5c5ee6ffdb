"""`answerback calls`."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from answerback.daemon.exits import NEEDS_A_PERSON
from answerback.daemon.journal import read
from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import call_facts, print_json, print_table
from answerback.model import OPEN_STATES, CallState
from answerback.names import short_ids
from answerback.store.reader import SQLiteReader

_STATES = ("open", *(state.value for state in CallState))
_MAY_BE_HELD = (CallState.INDETERMINATE, CallState.REQUESTED)
_ALL = 1_000_000


async def _calls(
    reader: SQLiteReader, session_id: str | None, states: Collection[CallState], undecided: bool, limit: int
) -> list[dict[str, Any]]:
    if undecided:
        # A held call is one nobody here handles, or one nobody could tell the outcome of: either waits for a person.
        asked = await reader.calls(session_id=session_id, states=_MAY_BE_HELD, limit=_ALL)
        calls = [call for call in asked if call.state is CallState.INDETERMINATE or call.hold_until is not None][:limit]
    else:
        calls = await reader.calls(session_id=session_id, states=sorted(states) or None, limit=limit)
    names = await short_ids(reader, calls)
    return [call_facts(call, short=short) for call, short in zip(calls, names, strict=True)]


@click.command("calls")
@click.option("--state", "names", multiple=True, type=click.Choice(_STATES), help="Only these; may be repeated.")
@click.option("--session", "session_id", metavar="SESSION", help="Only calls of this session.")
@click.option("--undecided", is_flag=True, help="Only calls waiting for a decision; exits 5 when there are any.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1), help="How many, newest first.")
@store_option
@json_option
def command(
    path: Path, names: tuple[str, ...], session_id: str | None, undecided: bool, limit: int, as_json: bool
) -> None:
    """List calls, newest first.

    \b
    Examples:
      answerback calls --state open
      answerback calls --undecided || echo "somebody has to look"
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    wanted = {state for name in names for state in (OPEN_STATES if name == "open" else (CallState(name),))}
    if undecided and names:
        raise click.UsageError("Give --state or --undecided, not both.")
    found = read(path, lambda reader: _calls(reader, session_id, wanted, undecided, limit))
    if as_json:
        print_json({"calls": found})
    else:
        columns = ("id", "name", "state", "outcome", "attempt", "session_id", "observed_at")
        rows = [tuple(str(one[column] or "-") for column in columns) for one in found]
        print_table(("CALL", "TOOL", "STATE", "OUTCOME", "ATTEMPT", "SESSION", "SEEN"), rows)
    if undecided and found:
        sys.exit(NEEDS_A_PERSON)
