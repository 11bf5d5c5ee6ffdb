"""`answerback up`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from answerback.daemon.exits import DRAINED_LATE, FAILED, OK
from answerback.daemon.options import json_option
from answerback.daemon.output import print_json_line
from answerback.daemon.settings import app_argument, daemon_options, is_given

if TYPE_CHECKING:
    from answerback.daemon.address import DaemonAddress
    from answerback.daemon.serve import Daemon, Ended


@click.command("up")
@app_argument
@daemon_options
@click.option("--with-parent", is_flag=True, hidden=True, help="End when the parent process does.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    app: str,
    app_dir: Path,
    path: Path,
    admin_host: str,
    admin_port: int,
    drain_timeout: float,
    standby: bool,
    log_level: str,
    log_format: str,
    with_parent: bool,
    as_json: bool,
) -> None:
    """Serve an app: follow its sessions and answer their calls, for weeks.

    APP is MODULE:NAME or FILE.py:NAME and names an App or Handlers (NAME is app where it is left out). SIGTERM
    drains, SIGHUP loads the code anew (running calls finish on the old code), SIGUSR1 tells what is going on.

    \b
    Examples:
      answerback up bot:app
      answerback up bot:app --db calls.db --standby --admin-port 9100
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    for number in (signal.SIGHUP, signal.SIGUSR1):
        # Their default is to kill; until the daemon listens there is nothing to load anew or to tell.
        signal.signal(number, signal.SIG_IGN)
    # Imported here: `up --help` needs neither openai nor pydantic.
    import anyio

    from answerback.daemon.apps import load_app
    from answerback.daemon.logs import configure
    from answerback.daemon.serve import Daemon, Options

    configure(level=log_level, style=log_format)
    options = Options(
        spec=app,
        app_dir=app_dir.absolute(),
        store=path if is_given(context, "path") else None,
        admin_host=admin_host,
        admin_port=admin_port,
        drain_timeout=drain_timeout if is_given(context, "drain_timeout") else None,
        standby=standby,
        with_parent=with_parent,
    )
    daemon = Daemon(
        load_app(app, app_dir=app_dir), options, announce=lambda address, store: _announce(address, store, as_json)
    )
    try:
        ended = anyio.run(daemon.run)
    except Exception as error:
        if not daemon.serving:
            raise
        _failed(error)
    _leave(daemon, ended, as_json)


def _leave(daemon: Daemon, ended: Ended, as_json: bool) -> NoReturn:
    """End the process, or start the new code in its place."""
    from answerback.daemon.reload import leave, start_again

    if ended.reload:
        if as_json:
            print_json_line({"reloading": {"pid": os.getpid()}})
        start_again()
    _say_goodbye(ended, as_json)
    code = OK if ended.report.clean else DRAINED_LATE
    if daemon.hurried:
        leave(code)
    sys.exit(code)


def _failed(error: Exception) -> NoReturn:
    """End a daemon that was serving and cannot go on; classes and places only, a text may carry values."""
    from answerback.daemon.logs import describe
    from answerback.errors import StoreError

    why = str(error) if isinstance(error, StoreError) else describe(error)
    click.echo(f"answerback: the daemon failed: {why}", err=True)
    sys.exit(FAILED)


def _announce(address: DaemonAddress, store: Path, as_json: bool) -> None:
    facts = {"app": address.app, "store": str(store), "admin_url": address.url, "pid": address.pid}
    if as_json:
        print_json_line({"serving": facts})
    else:
        click.echo(
            f"answerback {address.version} · {address.app} · store {store} · admin {address.url} · pid {address.pid}"
        )


def _say_goodbye(ended: Ended, as_json: bool) -> None:
    report = ended.report
    if as_json:
        left = {"cut_short": report.cut_short, "unsent": report.unsent}
        print_json_line({"drained": {"clean": report.clean, **left}})
    elif report.clean:
        click.echo("drained: nothing was cut short, nothing is unsent")
    else:
        click.echo(
            f"drained with work left: {report.cut_short} calls cut short, {report.unsent} results unsent; "
            "`answerback calls --state open` lists them, the next start goes on with them"
        )
