"""Where a daemon is found: a file for its owner only, believed only while its writer holds the store."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from answerback.daemon.address import DaemonAddress, address_path, find_daemon, host_name, publish, withdraw
from answerback.store.sqlite import SQLiteStore

ADDRESS = DaemonAddress(
    url="http://127.0.0.1:1", token="t", pid=os.getpid(), host=host_name(), since="now", version="0", app="bot:app"
)


@pytest.fixture
async def held(tmp_path: Path) -> AsyncGenerator[Path]:
    """A store that this process holds."""
    async with SQLiteStore(tmp_path / "calls.db"):
        yield tmp_path / "calls.db"


def test_the_file_is_readable_by_its_owner_only_also_where_one_lay_open_before(tmp_path: Path) -> None:
    store = tmp_path / "calls.db"
    address_path(store).write_text("old")
    address_path(store).chmod(0o666)
    publish(store, ADDRESS)
    assert stat.S_IMODE(address_path(store).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["calls.db.daemon.json"]


def test_the_token_shows_in_no_repr() -> None:
    assert "t'" not in repr(msgspec.structs.replace(ADDRESS, token="secret-token"))
    assert "secret-token" not in repr(msgspec.structs.replace(ADDRESS, token="secret-token"))


async def test_it_is_found_while_its_writer_holds_the_store(held: Path) -> None:
    publish(held, ADDRESS)
    assert find_daemon(held) == ADDRESS


async def test_it_is_found_through_a_link_to_the_store(held: Path, tmp_path: Path) -> None:
    publish(held, ADDRESS)
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(held)
    assert find_daemon(link) == ADDRESS


def test_a_left_over_of_a_process_that_was_killed_is_nobody(tmp_path: Path) -> None:
    publish(tmp_path / "calls.db", ADDRESS)
    assert find_daemon(tmp_path / "calls.db") is None


@pytest.mark.parametrize("change", [{"pid": os.getpid() + 1}, {"host": "elsewhere"}])
async def test_a_left_over_beside_a_new_owner_is_nobody(held: Path, change: dict[str, object]) -> None:
    publish(held, msgspec.structs.replace(ADDRESS, **change))
    assert find_daemon(held) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 1}'])
async def test_a_file_that_cannot_be_read_is_nobody(held: Path, content: str) -> None:
    address_path(held).write_text(content)
    assert find_daemon(held) is None


def test_only_its_own_address_is_withdrawn(tmp_path: Path) -> None:
    store = tmp_path / "calls.db"
    publish(store, msgspec.structs.replace(ADDRESS, token="the successor's"))
    withdraw(store, ADDRESS)
    assert address_path(store).exists()
    publish(store, ADDRESS)
    withdraw(store, ADDRESS)
    assert not address_path(store).exists()
    withdraw(store, ADDRESS)
