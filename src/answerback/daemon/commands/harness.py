"""`answerback harness`."""

from __future__ import annotations

import functools
from pathlib import Path

import anyio
import click

from answerback.daemon.options import json_option


def _knobs(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    """Read `NAME=VALUE` pairs.

    Raises:
        click.BadParameter: a pair has no name or no `=`.
    """
    knobs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE.", context, parameter)
        knobs[name] = value
    return knobs


@click.command("harness")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=0, show_default="any free one", type=click.IntRange(0, 65535), help="The port.")
@click.option("--state", "state_dir", type=click.Path(file_okay=False, path_type=Path), help="Keep everything here.")
@click.option("--memory", is_flag=True, help="Keep nothing on disk.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What the model says.")
@click.option("--set", "knobs", multiple=True, metavar="KNOB=VALUE", callback=_knobs, help="May be repeated.")
@click.option("--faults", metavar="FILE|seed:N", help="What goes wrong, and when.")
@click.option("--api-key", help="Accept this key only.")
@click.option("--seed", default=0, show_default=True, help="What every id and random choice is drawn from.")
@json_option
def command(
    host: str,
    port: int,
    state_dir: Path | None,
    memory: bool,
    script: Path | None,
    knobs: dict[str, str],
    faults: str | None,
    api_key: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run a local Agents API for development and tests.

    It prints one JSON line with its addresses when it is ready (with and without --json) and runs until SIGTERM.

    \b
    Example:
      answerback harness --port 8321 --script script.yaml
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    del as_json
    if memory and state_dir is not None:
        raise click.UsageError("Give --state or --memory, not both.")
    # Imported here: the server is not needed for `harness --help`.
    from answerback.harness.server import serve

    run = functools.partial(
        serve,
        host=host,
        port=port,
        state_dir=state_dir,
        memory=memory,
        script=script,
        knobs=knobs,
        faults=faults,
        api_key=api_key,
        seed=seed,
    )
    anyio.run(run)
