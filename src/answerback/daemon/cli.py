"""The entry point: a group of commands that are imported when they are run, and the exit codes.

`answerback --help` reads the table below and imports no command, so neither openai nor pydantic nor the store.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import click

from answerback.daemon.exits import FAILED, exit_code
from answerback.daemon.settings import defaults_for, read_file
from answerback.errors import AnswerbackError

_PACKAGE = "answerback.daemon.commands"

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "See a call survive kill -9, on an embedded harness.",
        "dev": "Serve an app on a local Agents API, and load it anew when its code changes.",
        "up": "Serve an app: follow its sessions and answer their calls, for weeks.",
        "chat": "Talk to a session in the terminal.",
        "harness": "Run a local Agents API for development and tests.",
        "ls": "List the sessions of a store.",
        "show": "Show one session or one call in full.",
        "calls": "List calls, newest first.",
        "tail": "Follow what happens in the daemon of a store, live.",
        "decide": "Say what became of a call nobody could tell.",
        "approve": "Say yes to a call that waits for a person.",
        "reject": "Say no to a call that waits for a person.",
        "cancel": "Ask the server to cancel a session's open turn.",
        "pause": "Take no new calls of a session until it is resumed.",
        "resume": "Go on with a session that was paused or set aside.",
        "resend": "Send the stored result of a call again.",
        "store": "Look after a store file: info, check, backup, prune, migrate.",
        "doctor": "Check what a daemon needs: Python, store, key, API, clock, disk.",
        "config": "Print the settings, and where each comes from.",
        "version": "Print the versions of answerback and what it stands on.",
    }
)
"""Every command's name and its line in the help; its code is the module of that name in `daemon.commands`."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Return the names of the commands this installation has, in the order of the table."""
        return [name for name in COMMANDS if importlib.util.find_spec(f"{_PACKAGE}.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or return None for a name that is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{_PACKAGE}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "settings",
    envvar="ANSWERBACK_CONFIG",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The settings file; ./answerback.toml where it is there.",
)
@click.pass_context
def program(context: click.Context, settings: Path | None) -> None:
    """Answer every function call of an agent, once, and show what became of each.

    \b
    Exit codes: 0 ok, 1 failed, 2 usage, 3 could not start (port, store locked, import),
    4 drained late with work left, 5 needs a person.
    """  # noqa: D301 - \b is click's mark for lines it leaves as they are
    found = read_file(settings)
    context.default_map = defaults_for(COMMANDS, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit with its code; errors of this library are one line on stderr."""
    try:
        program.main(args=arguments, prog_name="answerback")
    except AnswerbackError as error:
        click.echo(f"answerback: {error}", err=True)
        sys.exit(exit_code(error))
    except OSError as error:
        click.echo(f"answerback: {error}", err=True)
        sys.exit(FAILED)
