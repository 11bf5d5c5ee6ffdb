"""`answerback store`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from answerback.daemon.exits import FAILED
from answerback.daemon.options import json_option, store_option
from answerback.daemon.output import print_facts, print_json, stamp
from answerback.store.inspection import StoreFacts, back_up, check, inspect
from answerback.store.lock import lock_owner
from answerback.store.retention import DAY, PAYLOADS_AFTER, ROWS_AFTER

if TYPE_CHECKING:
    from answerback.store.retention import Pruned

_DAYS = click.FloatRange(min=0)


@click.group("store")
def command() -> None:
    """Look after a store file: info, check, backup, prune, migrate.

    \b
    Examples:
      answerback store info --db calls.db
      answerback store backup calls-monday.db --db calls.db
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are


def _facts(facts: StoreFacts) -> dict[str, Any]:
    """Return the facts ready for JSON."""
    oldest = facts.oldest_open
    return {
        "path": facts.path,
        "schema": facts.schema,
        "newest_schema": facts.newest_schema,
        "store_id": facts.store_id,
        "incarnation": facts.incarnation,
        "complete": facts.complete,
        "created_at": stamp(facts.created_at),
        "size_bytes": facts.size_bytes,
        "log_bytes": facts.log_bytes,
        "reclaimable_bytes": facts.reclaimable_bytes,
        "free_bytes": facts.free_bytes,
        "prunable_bytes": facts.prunable_bytes,
        "sessions": facts.sessions,
        "calls": facts.calls,
        "inputs": facts.inputs,
        "oldest_open_call": None
        if oldest is None
        else {"id": oldest.id, "name": oldest.name, "state": oldest.state, "observed_at": stamp(oldest.observed_at)},
        "owner": facts.owner,
    }


def _counted(rows: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in rows.items()) or "none"


def _size(count: int) -> str:
    return f"{count / 1_048_576:.1f} MiB" if count >= 1_048_576 else f"{count / 1024:.1f} KiB"


def _by(owner: dict[str, Any]) -> str:
    return f"host {owner.get('host')} pid {owner.get('pid')} since {owner.get('since')}"


@command.command("info")
@store_option
@json_option
def info(path: Path, as_json: bool) -> None:
    """Show what a store file holds, and who has it open.

    \b
    Example:
      answerback store info --json
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    facts = _facts(inspect(path))
    if as_json:
        print_json(facts)
        return
    oldest, owner = facts["oldest_open_call"], facts["owner"]
    newest = facts["newest_schema"]
    print_facts(
        {
            "path": facts["path"],
            "size": f"{_size(facts['size_bytes'])}, log {_size(facts['log_bytes'])}",
            "reclaimable": f"{_size(facts['reclaimable_bytes'])} (answerback store prune)",
            "sessions": _counted(facts["sessions"]),
            "calls": _counted(facts["calls"]),
            "inputs": _counted(facts["inputs"]),
            "oldest_open_call": oldest
            and f"{oldest['id'][:12]} {oldest['name']}, {oldest['state']}, seen {oldest['observed_at']}",
            "schema": f"{facts['schema']}" + ("" if facts["schema"] == newest else f", this release writes {newest}"),
            "store_id": facts["store_id"],
            "incarnation": facts["incarnation"],
            "rows": None if facts["complete"] else "may be missing: a copy, or rolled back",
            "created_at": facts["created_at"],
            "owner": "nobody" if owner is None else _by(owner),
        }
    )


@command.command("check")
@store_option
@json_option
def check_command(path: Path, as_json: bool) -> None:
    """Check a store file; exits 1 when something is wrong.

    Looks at the file's integrity, at references, and at what answerback itself promises of every row.
    A daemon may go on meanwhile.

    \b
    Example:
      answerback store check --db calls.db || echo "restore a backup"
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    found = check(path)
    if as_json:
        print_json({"ok": not found, "problems": [{"rule": one.rule, "subject": one.subject} for one in found]})
    elif not found:
        click.echo(f"{path}: nothing is wrong")
    for one in [] if as_json else found:
        click.echo(f"not so: {one.rule} ({one.subject})")
    if found:
        sys.exit(FAILED)


@command.command("backup")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@store_option
@json_option
def backup(path: Path, target: Path, as_json: bool) -> None:
    """Copy a store to a new file, also while a daemon uses it.

    The copy is one moment of the store, and knows that it is a copy: a store that is made of it asks before it runs
    a call it has no row of. To restore one, stop the daemon, move the store and its -wal and -shm files away, and put
    the copy in their place.

    \b
    Example:
      answerback store backup calls-monday.db --db calls.db
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    size = back_up(path, target)
    if as_json:
        print_json({"path": str(path.absolute()), "copy": str(target.absolute()), "size_bytes": size})
    else:
        click.echo(f"{target}: {_size(size)}")


def _free(path: Path, instead: str) -> None:
    """Return when no process has the store.

    Raises:
        StoreLockedError: one has; says what to ask of it.
    """
    owner = lock_owner(path)
    if owner is not None:
        # Imported here: it brings an HTTP client, which no other command about files needs.
        from answerback.daemon.remote import locked

        raise locked(path, owner, instead)


async def _prune(path: Path, payloads_after: float, rows_after: float) -> Pruned:
    # Imported here: a store opened for writing brings the event loop's part, which `--help` does not want.
    from answerback.store.sqlite import SQLiteStore

    async with SQLiteStore(path) as store:
        return await store.prune(payloads_after=payloads_after, rows_after=rows_after)


@command.command("prune")
@click.option(
    "--payloads-after",
    "payloads",
    type=_DAYS,
    default=PAYLOADS_AFTER / DAY,
    show_default=True,
    metavar="DAYS",
    help="Days of rest after which a session's arguments, results and messages are forgotten.",
)
@click.option(
    "--rows-after",
    "rows",
    type=_DAYS,
    default=ROWS_AFTER / DAY,
    show_default=True,
    metavar="DAYS",
    help="Days of rest after which its rows are deleted.",
)
@store_option
@json_option
def prune(path: Path, payloads: float, rows: float, as_json: bool) -> None:
    """Give up what is old, and let the file shrink.

    A session is at rest when no turn, call or message of it is open; nothing else is touched.

    \b
    Examples:
      answerback store prune --db calls.db
      answerback store prune --payloads-after 7 --rows-after 90
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    if rows < payloads:
        raise click.UsageError("--rows-after is not less than --payloads-after.")
    inspect(path)
    _free(path, "with `await store.prune()`")
    taken = anyio.run(_prune, path, payloads * DAY, rows * DAY)
    if as_json:
        print_json({name: getattr(taken, name) for name in taken.__struct_fields__})
        return
    click.echo(f"forgot the payloads of {taken.payloads} calls and {taken.inputs} messages")
    click.echo(f"deleted {taken.calls} calls and {taken.sessions} sessions")
    click.echo(f"the file shrank by {_size(taken.freed_bytes)}")


async def _migrate(path: Path) -> None:
    from answerback.store.sqlite import SQLiteStore

    async with SQLiteStore(path):
        pass


@command.command("migrate")
@store_option
@json_option
def migrate(path: Path, as_json: bool) -> None:
    """Bring a store to this release's schema, after copying it.

    A daemon does the same by itself when it starts. The copy lies beside the store as NAME.vN.bak.

    \b
    Example:
      answerback store migrate --db calls.db
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    before = inspect(path)
    copy = path.with_name(f"{path.name}.v{before.schema}.bak")
    climbs = before.schema < before.newest_schema
    if climbs:
        _free(path, "to stop, so that this release can open it")
        anyio.run(_migrate, path)
    if as_json:
        print_json(
            {"from": before.schema, "to": before.newest_schema, "copy": str(copy.absolute()) if climbs else None}
        )
    elif climbs:
        click.echo(f"{path}: schema {before.schema} -> {before.newest_schema}; the old file is {copy}")
    else:
        click.echo(f"{path}: has schema {before.schema} already")
