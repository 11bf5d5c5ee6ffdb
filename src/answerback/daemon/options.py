"""The options every command about a store takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

DEFAULT_STORE = "answerback.db"


def store_option(command: CommandT) -> CommandT:
    """Add `--db`, the store file: the option, else ANSWERBACK_DB, else ./answerback.db."""
    return click.option(
        "--db",
        "path",
        envvar="ANSWERBACK_DB",
        default=DEFAULT_STORE,
        show_default=True,
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="The store file.",
    )(command)


def json_option(command: CommandT) -> CommandT:
    """Add `--json`, which prints one JSON document instead of text for people."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def values_option(command: CommandT) -> CommandT:
    """Add `--values`, without which arguments and results are only measured, never printed."""
    return click.option("--values", is_flag=True, help="Print arguments and results too.")(command)
