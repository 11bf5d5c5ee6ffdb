"""Noticing that code changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from answerback.daemon import watch
from answerback.daemon.watch import Watch


def test_files_that_are_new_different_or_gone_are_named_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    seen = Watch(tmp_path)
    assert seen.changed() == []
    (tmp_path / "a.py").write_text("other")
    (tmp_path / "b.py").unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.yaml").write_text("c")
    assert seen.changed() == ["a.py", "b.py", "sub/c.yaml"]
    assert seen.changed() == []


def test_a_change_of_the_same_length_shows_by_its_time(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("a")
    seen = Watch(tmp_path)
    file.write_text("b")
    os.utime(file, ns=(1, 1))
    assert seen.changed() == ["a.py"]


def test_stores_caches_and_environments_are_not_looked_at(tmp_path: Path) -> None:
    seen = Watch(tmp_path)
    for name in ("calls.db", ".venv/a.py", "__pycache__/a.py", "node_modules/a.py", "venv/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert seen.changed() == []


def test_a_huge_folder_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_FILES", 3)
    for number in range(9):
        (tmp_path / f"{number}.py").write_text("x")
    assert len(Watch(tmp_path)) == 3
