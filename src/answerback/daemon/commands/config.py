"""`answerback config`."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from answerback.daemon.options import json_option
from answerback.daemon.output import print_json, print_table
from answerback.daemon.settings import FOREIGN, PARAMETERS, SECRET, daemon_options

_SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


def _settings(context: click.Context, values: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, parameter in PARAMETERS.items():
        value = values[parameter]
        source = context.get_parameter_source(parameter)
        plain = value if isinstance(value, (bool, int, float)) or value is None else str(value)
        found.append({"name": name, "value": plain, "source": _SOURCES.get(source, "default")})  # type: ignore[arg-type]  # None has no entry
    return found


def _foreign() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in (*FOREIGN, *sorted(name for name in os.environ if name.startswith("OTEL_"))):
        value = os.environ.get(name)
        # OTEL_EXPORTER_OTLP_HEADERS and its like carry keys, and an address may carry a password.
        secret = name in SECRET or name.startswith("OTEL_")
        shown = None if value is None else "(set)" if secret or "@" in value else value
        found.append({"name": name, "value": shown, "source": "environment" if value is not None else "not set"})
    return found


@click.command("config")
@click.option("--show", is_flag=True, help="Print every setting with its source; the only thing to do so far.")
@click.option("--app", envvar="ANSWERBACK_APP", metavar="APP", help="The import string of what `up` serves.")
@daemon_options
@json_option
@click.pass_context
def command(context: click.Context, /, show: bool, as_json: bool, **values: Any) -> None:
    """Print the settings, and where each comes from.

    A flag goes before the environment (ANSWERBACK_...), that before answerback.toml, that before the default.
    Secrets of the environment are never printed, only whether they are set.

    \b
    Examples:
      answerback config --show
      ANSWERBACK_DRAIN_TIMEOUT=60 answerback config --show --json
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    del show
    settings, environment = _settings(context, values), _foreign()
    if as_json:
        print_json({"settings": settings, "environment": environment})
        return
    rows = [tuple("-" if one[column] is None else str(one[column]) for column in one) for one in settings + environment]
    print_table(("SETTING", "VALUE", "SOURCE"), rows)
