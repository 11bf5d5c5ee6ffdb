"""The import arrows of the house: who may know whom. A new top-level module has to be given its place here."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from source_tree import PACKAGE, Module, imports, read_modules

ARROWS: Mapping[str, frozenset[str]] = {
    layer: frozenset(targets.split())
    for layer, targets in {
        "errors": "",
        "model": "errors",
        "wire": "model errors",
        "store": "model errors",
        "handlers": "wire model errors",
        "kits": "handlers",
        "programs": "errors",
        "harness": "wire programs errors",
        "actors": "handlers store wire",
        "names": "model errors",
        "decisions": "names actors handlers store wire",
        "sessions": "actors handlers store wire",
        "runtime": "sessions decisions names actors handlers store wire",
        "app": "runtime",
        "console": "runtime",
        "testing": "harness store handlers",
        "pytest_plugin": "testing",
        "daemon": "console harness runtime app store programs decisions names",
        "__main__": "daemon",
    }.items()
}
OPEN_TO_ALL = frozenset({"model", "errors"})
HARNESS_GUESTS = frozenset({"harness", "testing", "pytest_plugin", "daemon", "__main__"})
PURE = ("actors.session_state", "actors.reconcile", "actors.backoff", "actors.messages")
IMPURE = frozenset({"anyio", "openai", "httpx2", "asyncio", "trio"})


def _allowed(layer: str) -> frozenset[str]:
    """Close the arrows of a layer: whoever may import a room may import what that room may."""
    seen: set[str] = set()
    todo = [layer]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += ARROWS[current]
    return frozenset(seen) if layer == "errors" else frozenset(seen) | OPEN_TO_ALL


def _violations(modules: Mapping[str, Module]) -> list[str]:
    known = dict(modules)
    found: list[str] = []
    for module in modules.values():
        if module.layer and module.layer not in ARROWS:
            found.append(f"{module.name}: give it a place in ARROWS")
            continue
        for one in imports(module, known):
            top, _, rest = one.target.partition(".")
            layer = rest.partition(".")[0]
            where = f"{module.name}:{one.line}: imports {one.target}"
            if top in {"actors", "handlers", "store", "httpx"}:
                found.append(where)
            if top != PACKAGE:
                continue
            if not module.layer:
                found += [] if one.lazy else [f"{where} at import time"]
            elif not layer:
                found.append(f"{where}, the lazy front door")
            elif layer not in _allowed(module.layer):
                found.append(where)
    return found


def _graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    known = dict(modules)
    return {
        name: {one.target for one in imports(module, known) if one.target in known and one.target != name}
        for name, module in modules.items()
        if module.layer
    }


def test_every_import_follows_the_arrows() -> None:
    assert _violations(read_modules()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(_graph(read_modules())).prepare()
    except CycleError as cycle:
        pytest.fail(" -> ".join(cycle.args[1]))


def test_the_deciding_modules_reach_neither_network_nor_event_loop() -> None:
    modules = read_modules()
    for start in (f"{PACKAGE}.{name}" for name in PURE):
        assert start in modules, f"{start} moved: say where in PURE"
        seen: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            seen.add(name)
            for one in imports(modules[name], modules):
                assert one.target.partition(".")[0] not in IMPURE, f"{start} reaches {name}:{one.line}"
                if one.target in modules and one.target not in seen:
                    todo.append(one.target)


def test_only_the_guests_of_the_harness_know_it() -> None:
    for layer in ARROWS:
        assert ("harness" in _allowed(layer)) is (layer in HARNESS_GUESTS), layer


def test_handlers_and_store_do_not_know_each_other() -> None:
    assert "store" not in _allowed("handlers")
    assert "handlers" not in _allowed("store")


def _planted(folder: Path, **files: str) -> dict[str, Module]:
    for name, text in {"__init__": "", "store/__init__": "", "handlers/__init__": "", **files}.items():
        path = folder / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_modules(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store/bad", "from answerback.handlers import Tool"),
        ("store/bad", "from ..handlers import tool"),
        ("handlers/bad", "def later():\n    import answerback.store"),
        ("wire/bad", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from answerback.actors import x"),
        ("harness/bad", "import answerback.runtime"),
        ("runtime", "from answerback import SQLiteStore"),
        ("runtime", "import handlers"),
        ("surprise", ""),
        ("__init__", "from answerback.store import base"),
    ],
)
def test_a_planted_bad_import_is_found(tmp_path: Path, name: str, text: str) -> None:
    assert len(_violations(_planted(tmp_path, **{name: text}))) == 1


def test_what_is_allowed_is_not_found_in_a_planted_tree(tmp_path: Path) -> None:
    lazy = "def __getattr__(name):\n    from answerback.runtime import Runtime\n    return Runtime"
    good = {"__init__": lazy, "runtime": "from answerback.store import base\nfrom .errors import X", "errors": ""}
    assert _violations(_planted(tmp_path, **good)) == []


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    one = {"store/a": "from answerback.store import b", "store/b": "def f():\n    from .a import x"}
    with pytest.raises(CycleError):
        TopologicalSorter(_graph(_planted(tmp_path, **one))).prepare()
