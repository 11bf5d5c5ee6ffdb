"""Find what a daemon serves by its import string, and say in one line why that cannot be done."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from answerback.app import App
from answerback.daemon.exits import StartError
from answerback.handlers.registry import Handlers

DEFAULT_NAME = "app"


def load_app(spec: str, *, app_dir: Path) -> App:
    """Import `MODULE:NAME` or `FILE.py:NAME` and return its App; Handlers alone make one. Runs the module's code.

    Raises:
        click.UsageError: the string has another form.
        StartError: the import fails, or there is no App with handlers under the name.
    """
    where, colon, name = spec.partition(":")
    if not where or (colon and not name) or ":" in name:
        raise click.UsageError(f"{spec!r} is no import string: write MODULE:NAME, such as bot:app, or FILE.py:NAME.")
    name = name or DEFAULT_NAME
    found: Any = _import(where, app_dir)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise StartError(f"{where} has no {name!r}; name the App (or Handlers) in it: {where}:NAME") from None
    if isinstance(found, Handlers):
        found = App(handlers=found)
    if not isinstance(found, App):
        raise StartError(f"{where}:{name} is a {type(found).__name__}; it must be an answerback App or Handlers")
    if not len(found.handlers):
        raise StartError(f"{where}:{name} has no handlers, so no call could be answered; add some with @handlers.tool")
    return found


def _import(where: str, app_dir: Path) -> ModuleType:
    folder = app_dir.absolute()
    if where.endswith(".py"):
        file = Path(where) if Path(where).is_absolute() else folder / where
        folder, where = file.parent, file.stem
        if not file.is_file():
            raise StartError(f"there is no file {file}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise StartError(f"cannot import {where!r} (looked in {folder} first): {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return one line about an import that failed: its own text, because nothing was called yet, and its place."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    spots: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        spots.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    ours = str(Path(__file__))
    spots = [
        spot for spot in spots if spot[0] != ours and not spot[0].startswith("<frozen") and "importlib" not in spot[0]
    ]
    return f"{text} ({Path(spots[-1][0]).name}:{spots[-1][1]})" if spots else text
