"""The five methods behave alike on both backends, and a job outlasts every cancellation."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from answerback.store.batch import group
from answerback.store.connection import RawConnection, connect
from answerback.store.statements import Statement


def opener(path: Path) -> RawConnection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=RawConnection)


async def test_the_five_methods(tmp_path: Path) -> None:
    connection = await connect(lambda: opener(tmp_path / "a.db"))
    await connection.executescript("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 2);")
    await connection.execute("INSERT INTO t VALUES (?, ?)", (3, 4))
    assert await connection.fetchall("SELECT a, b FROM t WHERE a > ?", (0,)) == [(1, 2), (3, 4)]
    assert await connection.run(lambda raw: raw.total_changes) == 2
    with pytest.raises(sqlite3.OperationalError):
        await connection.execute("SELECT * FROM nowhere")
    with pytest.raises(ZeroDivisionError):
        await connection.run(lambda raw: 1 // 0)
    assert await connection.fetchall("SELECT count(*) FROM t") == [(2,)]
    await connection.close()
    await connection.close()
    assert repr(connection).endswith("closed>")


async def test_what_the_opener_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        await connect(lambda: opener(tmp_path / "nowhere" / "a.db"))


async def test_a_cancelled_job_is_finished_and_the_connection_stays_usable(tmp_path: Path) -> None:
    connection = await connect(lambda: opener(tmp_path / "a.db"))
    entered, go = threading.Event(), threading.Event()

    def job(raw: sqlite3.Connection) -> None:
        entered.set()
        go.wait(5)
        raw.execute("CREATE TABLE done (a)")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.run, job)
        await anyio.to_thread.run_sync(entered.wait, 5)
        tasks.cancel_scope.cancel()
        go.set()
    with anyio.fail_after(5):
        assert await connection.fetchall("SELECT name FROM sqlite_master") == [("done",)]
        await connection.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_native_cancellations_do_not_lose_the_result_of_a_job(tmp_path: Path) -> None:
    interruptions: list[int] = []
    connection = await connect(lambda: opener(tmp_path / "a.db"), interrupted=lambda: interruptions.append(1))
    entered, go = threading.Event(), threading.Event()

    def job(raw: sqlite3.Connection) -> str:
        entered.set()
        go.wait(5)
        return "result"

    task = asyncio.create_task(connection.run(job))
    await anyio.to_thread.run_sync(entered.wait, 5)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    go.set()
    with anyio.fail_after(5):
        assert await task == "result"
    assert len(interruptions) == 3
    await connection.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_thread_does_not_keep_the_interpreter_alive(tmp_path: Path) -> None:
    connection = await connect(lambda: opener(tmp_path / "a.db"))
    thread = await connection.run(lambda raw: threading.current_thread())
    assert thread.daemon
    await connection.close()


def test_statements_are_grouped_by_shape_but_never_reordered_on_one_subject() -> None:
    script = ["A1", "A2", "B1", "A3", "C2", "B2", "A1", "B3", "A2", "B1"]
    groups = group([Statement(name[0], (place,), name[1]) for place, name in enumerate(script)])
    ran = [script[place] for gathered in groups for place in gathered.places]
    assert sorted(ran) == sorted(script)
    for subject in "123":
        assert [name for name in ran if name[1] == subject] == [name for name in script if name[1] == subject]
    assert [gathered.sql for gathered in groups] == ["A", "B", "C", "B", "A", "B"]
