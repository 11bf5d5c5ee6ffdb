"""The manifest `requirements.toml`: every promise has a test, and every test it names exists."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from typing import Any

import pytest

from source_tree import ROOT

TESTS = ROOT / "tests"
PROMISES = ("P1", "P2", "P3", "P4", "P5", "P6")
ROWS = ("S1", "S3", "S41", "S42", "S43")


def _manifest() -> dict[str, Any]:
    return tomllib.loads((TESTS / "requirements.toml").read_text(encoding="utf-8"))


@cache
def _tests_in(file: str) -> frozenset[str]:
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_the_manifest_has_every_promise_and_every_row_of_the_house() -> None:
    assert {*PROMISES, *ROWS} <= set(_manifest())


@pytest.mark.parametrize("entry", sorted(_manifest()))
def test_an_entry_says_something_and_names_tests_that_exist(entry: str) -> None:
    facts = _manifest()[entry]
    assert re.fullmatch(r"[PSE]\d+", entry), "name it after the promise or the row"
    assert set(facts) == {"says", "tests"}
    assert facts["says"].endswith(".")
    assert facts["tests"], f"nothing shows {entry} yet: {facts['says']}"
    missing = [one for one in facts["tests"] if one.partition("::")[2] not in _tests_in(one.partition("::")[0])]
    assert missing == []


def test_a_name_that_is_no_test_is_missed() -> None:
    assert "test_the_six_packages_are_declared" in _tests_in("test_house.py")
    assert "test_of_nothing" not in _tests_in("test_house.py")
    assert _tests_in("no_such_file.py") == frozenset()
