"""Import strings: what they may look like, and one clear line for each way they can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from answerback.daemon.apps import load_app
from answerback.daemon.exits import NOT_STARTED, StartError, exit_code

GOOD = '''
from answerback import Handlers
from answerback.app import App

handlers = Handlers()

@handlers.tool
def ping() -> str:
    """Ping."""
    return "pong"

app = App(handlers=handlers)
bare = Handlers()
nothing = 7

class Space:
    app = app
'''


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


def _module(folder: Path, name: str, text: str = GOOD) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "form", ["{name}:app", "{name}", "{name}:handlers", "{name}.py", "{name}.py:app", "{name}:Space.app"]
)
def test_an_app_or_handlers_are_found_by_module_or_file(tmp_path: Path, form: str) -> None:
    name = f"good_{abs(hash((form, str(tmp_path))))}"
    _module(tmp_path, name)
    assert load_app(form.format(name=name), app_dir=tmp_path).handlers.names == ("ping",)


@pytest.mark.parametrize("spec", [":app", "bot:", "bot:app:more", ""])
def test_a_string_of_another_form_is_wrong_usage(tmp_path: Path, spec: str) -> None:
    with pytest.raises(click.UsageError):
        load_app(spec, app_dir=tmp_path)


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        ("{name}x:app", GOOD, "No module named"),
        ("{name}x.py", GOOD, "there is no file"),
        ("{name}:other", GOOD, "has no 'other'"),
        ("{name}:nothing", GOOD, "is a int; it must be an answerback App or Handlers"),
        ("{name}:bare", GOOD, "has no handlers"),
        ("{name}:app", "x = 1\nraise ValueError('no good')\n", "ValueError: no good ({name}.py:2)"),
        ("{name}:app", "import sys\nsys.exit('bye')\n", "SystemExit: bye ({name}.py:2)"),
        ("{name}:app", "import gone_module_xyz\n", "No module named 'gone_module_xyz' ({name}.py:1)"),
        ("{name}:app", "def broken(:\n", "SyntaxError: "),
        ("{name}:app", "from answerback.app import App\napp = App(handlers=None)\n", "must be Handlers, not NoneType"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exits_3(tmp_path: Path, spec: str, text: str, says: str) -> None:
    name = f"bad_{abs(hash((spec, text)))}"
    _module(tmp_path, name, text)
    with pytest.raises(StartError) as caught:
        load_app(spec.format(name=name), app_dir=tmp_path)
    assert says.format(name=name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert exit_code(caught.value) == NOT_STARTED
