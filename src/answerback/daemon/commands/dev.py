"""`answerback dev`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from answerback.daemon.options import json_option, store_option
from answerback.daemon.settings import LEVELS, app_argument, app_dir_option


@click.command("dev")
@app_argument
@click.option("--port", default=0, show_default="any free one", type=click.IntRange(0, 65535), help="The API's port.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What the model says.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="beside the store",
    help="Where the local API keeps its sessions.",
)
@click.option(
    "--log-level",
    envvar="ANSWERBACK_LOG_LEVEL",
    default="info",
    show_default=True,
    type=click.Choice(LEVELS, case_sensitive=False),
    help="What the app's process logs.",
)
@app_dir_option
@store_option
@json_option
def command(
    path: Path,
    app: str,
    app_dir: Path,
    port: int,
    script: Path | None,
    state: Path | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve an app on a local Agents API, and load it anew when its code changes.

    No key and no network are needed. Calls that run when the code changes finish on the old code. With --json what
    happens is a JSON object on a line of its own.

    \b
    Examples:
      answerback dev bot:app --script script.yaml
      answerback dev bot.py
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    # Imported here: `dev --help` needs no server.
    import anyio

    from answerback.daemon.developing import Development, DevOptions
    from answerback.daemon.logs import configure

    configure(level="warning")
    options = DevOptions(
        app=app,
        app_dir=app_dir.absolute(),
        store=path.absolute(),
        port=port,
        script=script,
        state=state,
        arguments=("--log-level", log_level),
        as_json=as_json,
    )
    sys.exit(anyio.run(Development(options).run))
