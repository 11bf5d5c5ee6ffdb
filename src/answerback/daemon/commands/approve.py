"""`answerback approve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_json

if TYPE_CHECKING:
    from answerback.model import CallRecord
    from answerback.store.base import Store


@click.command("approve")
@click.argument("name", metavar="CALL")
@click.option("--by", metavar="NAME", help="Who says so, for the record; your user name by default.")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@store_option
@json_option
def command(path: Path, name: str, by: str | None, reason: str | None, as_json: bool) -> None:
    """Say yes to a call that waits for a person.

    Its handler is started then, once. `answerback show CALL --values` shows what it was asked with.

    \b
    Examples:
      answerback calls --state waiting_approval
      answerback approve 3fa9c1 --reason "checked with the customer"
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    from answerback.daemon.writing import change_call, who

    person = by or who()

    async def alone(store: Store, call: str) -> CallRecord:
        from answerback.decisions import approve

        return await approve(store, call, by=person, reason=reason)

    body = {"by": person, "reason": reason}
    call = change_call(path, name, "approve", body, alone=alone, instead=lambda call: f"with runtime.approve({call!r})")
    if as_json:
        print_json({"call": call})
    else:
        click.echo(f"{call['id']} {call['name']}: approved; it is {call['state']}")
