"""Both stores pass the suite that third-party stores are asked to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from answerback.store.base import Store
from answerback.store.conformance import CHECKS, Check, calls, life, sessions, writing
from answerback.store.memory import MemoryStore
from answerback.store.sqlite import SQLiteStore

by_name = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


@by_name
async def test_the_sqlite_store_conforms(check: Check, tmp_path: Path) -> None:
    def make_store() -> Store:
        return SQLiteStore(tmp_path / "calls.db")

    await check(make_store)


@by_name
async def test_the_memory_store_conforms(check: Check) -> None:
    store = MemoryStore()

    def make_store() -> Store:
        return store

    await check(make_store)


def test_every_check_is_listed() -> None:
    modules = (calls, sessions, writing, life)
    written = {value for module in modules for name, value in vars(module).items() if name.startswith("check_")}
    assert set(CHECKS) == written
