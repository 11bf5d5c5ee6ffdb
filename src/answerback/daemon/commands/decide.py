"""`answerback decide`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from answerback.daemon.journal import read
from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import call_facts, print_json
from answerback.errors import StoreLockedError
from answerback.names import find_call, short_ids
from answerback.store.reader import SQLiteReader, lock_owner

if TYPE_CHECKING:
    from answerback.handlers.policy import Verdict

_NO_OUTPUT = "\0"
"""What `--happened` without a value stands for; no argument of a process can hold a NUL."""


def _verdict(happened: str | None, failed: str | None, not_happened: bool, unknown: bool) -> Verdict[Any]:
    """Return the one verdict that was given.

    Raises:
        click.UsageError: none was given, or more than one.
    """
    # Imported here: the handlers' room brings pydantic, and `decide --help` wants none of it.
    from answerback.handlers.policy import Failed, Happened, NotHappened, Unknown

    given: list[Verdict[Any]] = []
    if happened is not None:
        given.append(Happened(_output(happened)))
    if failed is not None:
        given.append(Failed(failed))
    given += [NotHappened()] * not_happened + [Unknown()] * unknown
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


def _held(path: Path, owner: dict[str, Any], short: str) -> StoreLockedError:
    who = f"host {owner.get('host')} pid {owner.get('pid')} since {owner.get('since')}"
    return StoreLockedError(
        f"The store {path} is in use by {who}: only that process can write to it. "
        f"Ask it, with runtime.decide({short!r}, …), or stop it and run this command again.",
        path=str(path),
        owner=who,
    )


async def _full_and_short(reader: SQLiteReader, name: str) -> tuple[str, str]:
    call = await find_call(reader, name)
    return call.public_id, (await short_ids(reader, [call]))[0]


async def _write(path: Path, call: str, verdict: Verdict[Any], short: str) -> dict[str, Any]:
    from answerback.decisions import decide
    from answerback.store.sqlite import SQLiteStore

    async with SQLiteStore(path) as store:
        return call_facts(await decide(store, call, verdict), short=short)


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

    Works on a store no process has open; the runtime that opens it next sends the answer.

    \b
    Examples:
      answerback decide 3fa9c1 --happened '{"refund": "rf_902"}'
      answerback decide 3fa9c1 --not-happened
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    verdict = _verdict(happened, failed, not_happened, unknown)
    full, short = read(path, lambda reader: _full_and_short(reader, name))
    owner = lock_owner(path)
    if owner is not None:
        raise _held(path, owner, short)
    decided = anyio.run(_write, path, full, verdict, short)
    if as_json:
        print_json({"call": decided})
    else:
        click.echo(f"{short} {decided['name']}: {decided['state']} ({decided['outcome'] or 'no outcome'})")
