"""The size of modules and functions: small enough to be read in one sitting. `-s` prints the report."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from statistics import median, quantiles

from source_tree import Module, read_modules

MODULE_LIMIT = 400
FUNCTION_LIMIT = 60
MEDIAN_GOAL = 150


def _functions(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{module.name}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def _spread(sizes: list[int]) -> str:
    p90 = round(quantiles(sizes, n=10)[-1]) if len(sizes) > 1 else sizes[0]
    return f"{len(sizes)}, median {round(median(sizes))}, p90 {p90}, longest {max(sizes)} lines"


def test_modules_and_functions_keep_within_the_budget() -> None:
    modules = read_modules().values()
    lines = {module.name: module.text.count("\n") for module in modules}
    bodies = dict(size for module in modules for size in _functions(module))
    print(f"\nmodules    {_spread(list(lines.values()))} (goal: median {MEDIAN_GOAL})")
    print(f"functions  {_spread(list(bodies.values()))}")
    assert {name: size for name, size in lines.items() if size > MODULE_LIMIT} == {}
    assert {name: size for name, size in bodies.items() if size > FUNCTION_LIMIT} == {}


def test_the_median_module_is_short() -> None:
    assert median(module.text.count("\n") for module in read_modules().values()) <= MEDIAN_GOAL


def test_a_long_function_is_measured_from_its_def_to_its_end() -> None:
    text = "def f():\n" + "    x = 1\n" * (FUNCTION_LIMIT + 5)
    module = next(iter(read_modules().values()))
    assert list(_functions(Module("m", module.path, text))) == [("m:1 f", FUNCTION_LIMIT + 6)]
