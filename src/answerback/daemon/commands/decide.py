"""`answerback decide`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json

if TYPE_CHECKING:
    from answerback.model import CallRecord
    from answerback.store.base import Store

_NO_OUTPUT = "\0"
"""What `--happened` without a value stands for; no argument of a process can hold a NUL."""


def _words(happened: str | None, failed: str | None, not_happened: bool, unknown: bool) -> dict[str, Any]:
    """Return the one verdict that was given, in the words of the admin.

    Raises:
        click.UsageError: none was given, or more than one.
    """
    given: list[dict[str, Any]] = []
    if happened is not None:
        given.append({"verdict": "happened", "output": _output(happened)})
    if failed is not None:
        given.append({"verdict": "failed", "text": failed})
    given += [{"verdict": "not_happened"}] * not_happened + [{"verdict": "unknown"}] * unknown
    if len(given) != 1:
        raise click.UsageError("Give exactly one of --happened, --failed, --not-happened, --unknown.")
    return given[0]


def _output(text: str) -> Any:
    if text == _NO_OUTPUT:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command("decide")
@click.argument("name", metavar="CALL")
@click.option(
    "--happened",
    is_flag=False,
    flag_value=_NO_OUTPUT,
    metavar="[JSON|TEXT]",
    help="It took place; the value is what the handler would have returned.",
)
@click.option("--failed", metavar="TEXT", help="It was tried and failed for good; the model reads TEXT.")
@click.option("--not-happened", is_flag=True, help="It did not, and no longer can: the handler may run again.")
@click.option("--unknown", is_flag=True, help="Nobody can tell: the model is told so.")
@store_option
@json_option
def command(
    path: Path,
    name: str,
    happened: str | None,
    failed: str | None,
    not_happened: bool,
    unknown: bool,
    as_json: bool,
) -> None:
    """Say what became of a call nobody could tell.

    The daemon of the store takes the decision; without one it is stored, and the runtime that opens the store next
    sends the answer.

    \b
    Examples:
      answerback decide 3fa9c1 --happened '{"refund": "rf_902"}'
      answerback decide 3fa9c1 --not-happened
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    words = _words(happened, failed, not_happened, unknown)
    # Imported here: the handlers' room brings pydantic, and `decide --help` wants none of it.
    from answerback.daemon.writing import change_call

    async def alone(store: Store, call: str) -> CallRecord:
        from answerback.daemon.verdicts import verdict_of
        from answerback.decisions import decide

        verdict = verdict_of(words["verdict"], output=words.get("output"), text=words.get("text"))
        return await decide(store, call, verdict)

    decided = change_call(
        path, name, "decide", words, alone=alone, instead=lambda call: f"with runtime.decide({call!r}, …)"
    )
    if as_json:
        print_json({"call": decided})
    else:
        click.echo(f"{decided['id']} {decided['name']}: {decided['state']} ({decided['outcome'] or 'no outcome'})")
