"""The settings of the daemon and of the commands around it: a flag, else the environment, else `answerback.toml`.

click reads all three; this module names them and reads the file. `answerback config --show` prints what came of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from answerback.daemon.options import store_option
from answerback.errors import ConfigurationError

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

FILE = "answerback.toml"
LEVELS = ("debug", "info", "warning", "error")
STYLES = ("auto", "json", "console")
PARAMETERS: Mapping[str, str] = {
    "app": "app",
    "app_dir": "app_dir",
    "db": "path",
    "admin_host": "admin_host",
    "admin_port": "admin_port",
    "drain_timeout": "drain_timeout",
    "standby": "standby",
    "log_level": "log_level",
    "log_format": "log_format",
}
"""The name of a setting in the file, and that of click's parameter."""
FOREIGN = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_WEBHOOK_SECRET", "NO_COLOR", "PORT")
"""Variables of others that are honoured; those that hold a secret are only ever said to be set."""
STORE_COMMANDS = ("info", "check", "backup", "prune", "migrate")
"""The commands of the group `store`, which take their defaults one level further down."""
SECRET = frozenset({"OPENAI_API_KEY", "OPENAI_WEBHOOK_SECRET"})


def read_file(path: Path | None) -> dict[str, Any]:
    """Return the settings of a file by click's parameter names; without a path `./answerback.toml`, if it is there.

    Raises:
        ConfigurationError: the file named cannot be read, is no TOML, or has a setting nobody knows.
    """
    place = path if path is not None else Path(FILE)
    try:
        found = tomllib.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if path is None:
            return {}
        raise ConfigurationError(f"there is no settings file {path}") from error
    except OSError as error:
        raise ConfigurationError(f"the settings file {place} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the settings file {place} is no TOML: {error}") from None
    unknown = sorted(found.keys() - PARAMETERS.keys())
    if unknown:
        raise ConfigurationError(
            f"the settings file {place} has an unknown setting {unknown[0]!r}; known are {', '.join(PARAMETERS)}"
        )
    return {PARAMETERS[name]: value for name, value in found.items()}


def defaults_for(commands: Iterable[str], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return click's `default_map`: the settings of the file, for every command and for the commands of a group."""
    nested = dict.fromkeys(STORE_COMMANDS, found)
    return {name: {**found, **nested} if name == "store" else found for name in commands}


def app_argument(command: CommandT) -> CommandT:
    """Add `APP`, the import string of what to serve."""
    return click.argument("app", metavar="APP", envvar="ANSWERBACK_APP")(command)


def app_dir_option(command: CommandT) -> CommandT:
    """Add `--app-dir`, where the module of APP is looked for first."""
    return click.option(
        "--app-dir",
        envvar="ANSWERBACK_APP_DIR",
        default=".",
        show_default=True,
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Where APP's module is looked for first.",
    )(command)


def daemon_options(command: CommandT) -> CommandT:
    """Add the settings of a daemon."""
    decorators = (
        app_dir_option,
        store_option,
        click.option(
            "--admin-host",
            envvar="ANSWERBACK_ADMIN_HOST",
            default="127.0.0.1",
            show_default=True,
            help="The address of probes, metrics and commands; the token is needed wherever that is.",
        ),
        click.option(
            "--admin-port",
            envvar=["ANSWERBACK_ADMIN_PORT", "PORT"],
            default=0,
            show_default="any free one",
            show_envvar=True,
            type=click.IntRange(0, 65535),
            help="Its port.",
        ),
        click.option(
            "--drain-timeout",
            envvar="ANSWERBACK_DRAIN_TIMEOUT",
            default=25.0,
            show_default=True,
            type=click.FloatRange(min=0),
            help="Seconds running handlers get to finish.",
        ),
        click.option(
            "--standby/--no-standby",
            envvar="ANSWERBACK_STANDBY",
            default=False,
            help="Wait for the store while another daemon has it, and take over when that one ends.",
        ),
        click.option(
            "--log-level",
            envvar="ANSWERBACK_LOG_LEVEL",
            default="info",
            show_default=True,
            type=click.Choice(LEVELS, case_sensitive=False),
            help="What is logged.",
        ),
        click.option(
            "--log-format",
            envvar="ANSWERBACK_LOG_FORMAT",
            default="auto",
            show_default=True,
            type=click.Choice(STYLES, case_sensitive=False),
            help="How; auto is for a person on a terminal, JSON lines elsewhere.",
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def is_given(context: click.Context, parameter: str) -> bool:
    """Whether a parameter was given by anybody, instead of falling back to its default."""
    source = context.get_parameter_source(parameter)
    return source not in {None, click.core.ParameterSource.DEFAULT}
