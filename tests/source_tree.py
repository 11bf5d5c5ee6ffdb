"""The library's source as data: its modules, and what each one imports. For the tests that watch over the house."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = "answerback"


class Import(msgspec.Struct, frozen=True):
    """One imported module, absolute; `lazy` when it does not happen while its importer is imported."""

    target: str
    line: int
    lazy: bool


class Module(msgspec.Struct, frozen=True):
    """One module of a source tree."""

    name: str
    path: Path
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def layer(self) -> str:
        """The room, or the module at the top, it belongs to; empty for the package itself."""
        return self.name.partition(".")[2].partition(".")[0]


def read_modules(source: Path = SOURCE) -> dict[str, Module]:
    """Return every module of the package under a source folder, by dotted name."""
    modules: dict[str, Module] = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return modules


def imports(module: Module, known: dict[str, Module]) -> list[Import]:
    """Return what a module imports; `from package import name` counts as the submodule where there is one."""
    found: list[Import] = []
    for node, lazy in _walk(module.tree, lazy=False):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                found.append(Import(deeper if deeper in known else base, node.lineno, lazy))
    return found


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    parts = module.name.split(".")
    parents = parts[: len(parts) - node.level + is_package]
    return ".".join([*parents, node.module] if node.module else parents)


def _walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        later = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield inner, True
                yield from _walk(inner, lazy=True)
            for inner in child.orelse:
                yield inner, later
                yield from _walk(inner, lazy=later)
            continue
        yield child, later
        yield from _walk(child, lazy=later)
