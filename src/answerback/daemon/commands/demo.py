"""`answerback demo`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from answerback.daemon.exits import FAILED
from answerback.daemon.options import json_option
from answerback.daemon.output import print_json
from answerback.errors import ConfigurationError

if TYPE_CHECKING:
    from answerback.daemon.demo.facts import Report


def _folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="answerback-demo-"))
    except OSError as error:
        raise ConfigurationError(f"there is no folder for temporary files ({error.strerror}); set TMPDIR") from error


def _play(folder: Path, seed: int, *, quiet: bool) -> Report:
    # Imported here: the harness and its server are not needed for `demo --help`.
    from answerback.daemon.demo.picture import Picture
    from answerback.daemon.demo.play import play

    return anyio.run(partial(play, folder, seed=seed, picture=Picture(quiet=quiet)))


def _document(report: Report, *, kept: bool) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(report)
    document["ledger"]["duplicates"] = report.ledger.duplicates
    document["helper"]["ledger"]["duplicates"] = report.helper.ledger.duplicates
    return {"ok": report.kept, **document, "folder": report.folder if kept else None}


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the folder with store and ledgers.")
@click.option("--seed", default=7, show_default=True, help="What the harness's ids are drawn from.")
@json_option
def command(keep: bool, seed: int, as_json: bool) -> None:
    """See a call survive kill -9, on an embedded harness.

    A worker is killed between the bank's payment and the stored result, and started again; then the same is done
    with the official client's own helper. Needs no key and no network; about 20 seconds. Exits 1 if an order was
    refunded twice.

    \b
    Examples:
      answerback demo
      answerback demo --keep && answerback ls --db FOLDER/answerback.db
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    folder = _folder()
    try:
        report = _play(folder, seed, quiet=as_json)
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(_document(report, kept=keep))
    elif keep:
        click.echo(f"  kept {folder}")
    if not report.kept:
        sys.exit(FAILED)
