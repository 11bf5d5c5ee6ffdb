"""The house itself: what a clone, a source distribution and an import of it are like."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from source_tree import PACKAGE, ROOT, SOURCE, read_modules

ROOMS = ("actors", "handlers", "store")
BACKEND = ROOT / "tools" / "build_backend.py"


def _git(*arguments: str) -> str:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _names(requirements: list[Any]) -> set[str]:
    return {re.split(r"[^\w-]", one)[0].lower() for one in requirements if isinstance(one, str)}


# S42: the rooms at the top


@pytest.mark.parametrize("room", ROOMS)
def test_a_clone_shows_the_rooms_at_the_top(room: str) -> None:
    assert _git("ls-files", "-s", room).split()[0] == "120000"
    link = ROOT / room
    if not link.is_symlink():
        # A checkout without symlinks (core.symlinks=false) holds the target's name as text; nothing depends on more.
        assert link.read_text(encoding="utf-8").strip() == f"src/{PACKAGE}/{room}"
        return
    assert link.readlink().as_posix() == f"src/{PACKAGE}/{room}"
    assert link.resolve() == SOURCE / PACKAGE / room
    assert (link / "__init__.py").is_file()


def test_the_answer_for_checkouts_without_symlinks_is_written_down() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "core.symlinks" in text
    assert "src/answerback/" in text


def test_a_source_distribution_has_the_rooms_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = types.ModuleType("uv_build")
    hooks = [name for name in _backend_names() if name != "build_sdist"]
    for hook in hooks:
        setattr(plain, hook, None)

    def build_sdist(directory: str, _settings: object = None) -> str:
        with tarfile.open(Path(directory, "answerback-9.tar.gz"), "w:gz") as tar:
            for room in ROOMS:
                tar.add(SOURCE / PACKAGE / "errors.py", f"answerback-9/src/{PACKAGE}/{room}/errors.py")
        return "answerback-9.tar.gz"

    plain.build_sdist = build_sdist  # type: ignore[attr-defined]  # a stand-in for the compiled backend
    monkeypatch.setitem(sys.modules, "uv_build", plain)
    spec = importlib.util.spec_from_file_location("build_backend", BACKEND)
    assert spec is not None
    assert spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)

    name = backend.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as tar:
        tar.extractall(tmp_path, filter="data")
    for room in ROOMS:
        link = tmp_path / "answerback-9" / room
        assert link.readlink().as_posix() == f"src/{PACKAGE}/{room}"
        assert (link / "errors.py").is_file()


@pytest.mark.network
def test_the_real_source_distribution_has_the_rooms_and_the_real_wheel_does_not(tmp_path: Path) -> None:
    subprocess.run(["uv", "build", "--out-dir", str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=300)
    (sdist,) = tmp_path.glob("*.tar.gz")
    (wheel,) = tmp_path.glob("*.whl")
    with tarfile.open(sdist) as tar:
        links = {member.name.partition("/")[2]: member.linkname for member in tar if member.issym()}
    assert links == {room: f"src/{PACKAGE}/{room}" for room in ROOMS}
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True)
    assert {line.split("/")[0] for line in listed.stdout.splitlines()[1:]} <= {PACKAGE, "answerback-0.1.0.dist-info"}


def _backend_names() -> list[str]:
    for node in ast.parse(BACKEND.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise AssertionError("the build backend lists its hooks in __all__")


# S43: the packages


def test_the_six_packages_are_declared() -> None:
    project = _project()
    assert {"anyio", "openai", "pydantic", "msgspec", "aiosqlite"} <= _names(project["project"]["dependencies"])
    assert "pytest-anyio" in _names(project["dependency-groups"]["test"])


def test_every_dependency_has_an_upper_bound() -> None:
    assert [one for one in _project()["project"]["dependencies"] if "<" not in one] == []


# Imports


def test_importing_the_package_loads_nothing_else() -> None:
    heavy = "{'anyio', 'openai', 'pydantic', 'msgspec', 'aiosqlite', 'click'}"
    assert _python(f"import sys, answerback; print(*sorted({heavy} & set(sys.modules)))") == []


def test_every_public_name_resolves_and_is_listed() -> None:
    code = (
        "import answerback\n"
        "names = getattr(answerback, '__all__', [])\n"
        "missing = [n for n in names if not hasattr(answerback, n) or n not in dir(answerback)]\n"
        "print(*missing)"
    )
    assert _python(code) == []


def test_constraints_name_versions_and_no_addresses() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


def test_no_tracked_file_names_an_index_host_or_a_machine() -> None:
    # The classes of one letter keep this file from finding itself.
    wanted = re.compile(r"/[w]ork/|/[r]oot/|/[h]ome/\w|/[U]sers/\w|python[h]osted\.org|[i]ndex-url|/[s]imple/?[\"']")
    found: list[str] = []
    for name in _git("ls-files", "-z").split("\0"):
        path = ROOT / name
        if not name or path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{name}: {match.group()}" for match in wanted.finditer(text)]
    assert found == []


def test_there_is_no_committed_lock_file() -> None:
    assert _git("ls-files", "*.lock") == ""


# Docstrings


def _undocumented(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(child, ast.If | ast.Try | ast.With):
                yield from _undocumented(child, name)
            continue
        decorators = {ast.unparse(one) for one in child.decorator_list}
        if child.name.startswith("_") or decorators & {"overload", "typing.overload", f"{child.name}.setter"}:
            continue
        if ast.get_docstring(child) is None:
            yield f"{name}:{child.lineno} {child.name}"
        if isinstance(child, ast.ClassDef):
            yield from _undocumented(child, name)


def test_every_public_name_has_a_docstring() -> None:
    missing: list[str] = []
    for module in read_modules().values():
        tree = module.tree
        missing += [] if ast.get_docstring(tree) else [module.name]
        missing += _undocumented(tree, module.name)
    assert missing == []


def test_a_missing_docstring_is_found() -> None:
    tree = ast.parse("class A:\n    '''Doc.'''\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\n")
    assert list(_undocumented(tree, "m")) == ["m:3 f", "m:5 h"]
