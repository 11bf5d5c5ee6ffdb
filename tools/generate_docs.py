"""Write the tables of docs/ that come from the code: `python tools/generate_docs.py`.

A page marks their places with `<!-- generated: NAME -->` and `<!-- end -->`. A test fails when running this would
change a page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import click
from click.testing import CliRunner

DOCS = Path(__file__).resolve().parent.parent / "docs"
PLACE = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; pipes in cells are escaped."""
    lines = [headers, ["---"] * len(headers), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def described(text: str) -> dict[str, str]:
    """Return the `name: meaning` entries of a docstring, continuation lines joined."""
    entries: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        start = re.match(r"\s*(\w+): (.+)", line)
        if start and not line.startswith(" " * 8 + " "):
            name = start[1]
            entries[name] = start[2].strip()
        elif name and line.strip():
            entries[name] += " " + line.strip()
        else:
            name = ""
    return entries


ALIASES = {"Enabled": "bool or a function", "Approval": "bool or a function"}


def annotation(kind: object) -> str:
    """Return an annotation of an option as a reader writes it: literals by their values."""
    from answerback import model

    text = str(getattr(kind, "__forward_arg__", kind))
    for name, written in ALIASES.items():
        text = text.replace(name, written)
    for name in ("Effects", "OnInterrupted"):
        text = text.replace(name, " | ".join(f'"{value}"' for value in get_args(getattr(model, name))))
    return text


def options() -> str:
    """The options of a tool."""
    from answerback.handlers.options import FunctionOptions, Settings, ToolOptions

    meanings = described(FunctionOptions.__doc__ or "") | described(ToolOptions.__doc__ or "")
    types = {**FunctionOptions.__annotations__, **ToolOptions.__annotations__}
    defaults = Settings()
    rows = [
        (f"`{name}`", f"`{annotation(types[name])}`", f"`{getattr(defaults, name, None)!r}`", meaning)
        for name, meaning in meanings.items()
    ]
    return table(("option", "type", "default", "meaning"), rows)


def runtime() -> str:
    """The parameters of Runtime."""
    from answerback.runtime import Runtime

    meanings = described(inspect.getdoc(Runtime) or "")
    parameters = inspect.signature(Runtime).parameters
    rows: list[tuple[str, str, str]] = []
    for name, parameter in parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        rows.append((f"`{name}`", default, meanings[name]))
    return table(("parameter", "default", "meaning"), rows)


def knobs() -> str:
    """The knobs of the harness."""
    from answerback.harness.knobs import knob_table

    rows = [(f"`{one.name}`", one.type, f"`{one.default}`", one.section, one.meaning) for one in knob_table()]
    return table(("knob", "type", "default", "section", "meaning"), rows)


STATES = {
    "requested": "the session waits for it; its handler was not started",
    "waiting_approval": "a person has to approve it first",
    "started": "its handler was entered, or may have been",
    "indeterminate": "it was started and its process is gone; a hook, a person or the policy decides",
    "finished": "its result is stored",
    "submitted": "its result was sent; accepted, or without a clear answer yet",
    "acked": "the server has the result, and asks for it no more",
    "obsolete": "nobody waits for it any more; nothing ran, or its result came too late",
    "obsolete_unknown": "nobody waits for it any more, and it was started: an effect may exist",
    "superseded": "the server shows another result than ours",
}


def states() -> str:
    """The states of a call."""
    from answerback.model import CallState

    rows = [(f"`{state.value}`", "closed" if state.closed else "open", STATES[state.value]) for state in CallState]
    return table(("state", "", "meaning"), rows)


def help_of(*words: str) -> str:
    """Return what one command says of itself."""
    from answerback.daemon.cli import program

    shown = CliRunner().invoke(program, [*words, "--help"], prog_name="answerback", terminal_width=100)
    return f"```text\n{shown.output.strip()}\n```\n"


def commands() -> str:
    """The help of every command."""
    from answerback.daemon.cli import COMMANDS, program

    parts: list[str] = []
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        if command is None:
            continue
        parts.append(f"## {name}\n\n{help_of(name)}")
        if isinstance(command, click.Group):
            parts += [f"### {name} {inner}\n\n{help_of(name, inner)}" for inner in sorted(command.commands)]
    return "\n".join(parts)


SECTIONS: dict[str, Callable[[], str]] = {
    "options": options,
    "runtime": runtime,
    "knobs": knobs,
    "states": states,
    "commands": commands,
}


def regenerated(text: str) -> str:
    """Return a page with its generated parts as they should be."""
    return PLACE.sub(lambda place: f"{place[1]}\n{SECTIONS[place[2]]()}\n{place[3]}", text)


def main() -> None:
    """Rewrite the pages."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(regenerated(text), encoding="utf-8")


if __name__ == "__main__":
    main()
