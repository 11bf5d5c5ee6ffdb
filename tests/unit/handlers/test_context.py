"""What a handler knows of its call, and log records that carry the ids."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from answerback.errors import OutputError, RuntimeStateError
from answerback.handlers.context import CallLogFilter, ToolContext, enter
from answerback.model import CallKey

KEY = CallKey("sess_1", "turn_1", "call_1")


class Notebook:
    """A journal and powers that remember."""

    def __init__(self) -> None:
        self.checkpoints: list[tuple[CallKey, int, str, bytes]] = []
        self.messages: list[tuple[CallKey, str]] = []
        self.threads: set[int] = set()

    async def checkpoint(self, key: CallKey, attempt: int, name: str, value: bytes) -> None:
        self.checkpoints.append((key, attempt, name, value))

    def progress(self, key: CallKey, message: str) -> None:
        self.messages.append((key, message))
        self.threads.add(threading.get_ident())


def context(notebook: Notebook, **options: Any) -> ToolContext:
    return ToolContext(KEY, name="refund", journal=notebook, powers=notebook, **options)


def test_a_context_knows_its_call() -> None:
    deadline = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    ctx = context(Notebook(), attempt=2, deadline=deadline, deps={"db": 1}, checkpoints={"sent": [1]})
    assert (ctx.session_id, ctx.turn_id, ctx.call_id, ctx.name) == ("sess_1", "turn_1", "call_1", "refund")
    assert (ctx.attempt, ctx.deadline, ctx.caller, ctx.deps) == (2, deadline, None, {"db": 1})
    assert dict(ctx.checkpoints) == {"sent": [1]}
    assert repr(ctx) == "<ToolContext refund sess_1/turn_1/call_1 attempt 2>"


def test_the_idempotency_key_is_the_same_for_every_attempt() -> None:
    first, second = context(Notebook()), context(Notebook(), attempt=2)
    assert first.idempotency_key == second.idempotency_key == KEY.digest


def test_a_context_is_read_only() -> None:
    ctx = context(Notebook(), checkpoints={"a": 1})
    with pytest.raises(AttributeError, match="read-only"):
        ctx.attempt = 3
    with pytest.raises(TypeError):
        ctx.checkpoints["a"] = 2  # type: ignore[index] # pyright: ignore[reportIndexIssue] - refused is the point


async def test_a_checkpoint_is_json_in_the_journal() -> None:
    notebook = Notebook()
    ctx = context(notebook, attempt=3)
    await ctx.checkpoint("sent", {"at": dt.date(2026, 1, 2)})
    assert notebook.checkpoints == [(KEY, 3, "sent", b'{"at":"2026-01-02"}')]
    with pytest.raises(OutputError):
        await ctx.checkpoint("bad", b"bytes")


async def test_progress_from_a_thread_arrives_on_the_loops_own_thread() -> None:
    notebook = Notebook()
    ctx = context(notebook)
    ctx.progress("half")
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(ctx.progress, "done")
    assert notebook.messages == [(KEY, "half"), (KEY, "done")]
    assert notebook.threads == {threading.get_ident()}


def test_there_is_no_current_context_outside_a_handler() -> None:
    with pytest.raises(RuntimeStateError):
        ToolContext.current()


def record() -> logging.LogRecord:
    return logging.LogRecord("app", logging.INFO, __file__, 1, "hello", None, None)


def ids(made: logging.LogRecord) -> tuple[Any, ...]:
    return tuple(getattr(made, name) for name in ("session_id", "turn_id", "call_id", "tool"))


def test_records_outside_a_handler_get_empty_ids() -> None:
    made = record()
    assert CallLogFilter().filter(made) is True
    assert ids(made) == ("", "", "", "")


async def test_records_inside_a_handler_get_its_ids_and_keep_what_they_have() -> None:
    async def inside() -> tuple[Any, ...]:
        enter(context(Notebook()))
        made = record()
        made.call_id = "own"
        CallLogFilter().filter(made)
        return ids(made)

    found: list[tuple[Any, ...]] = []

    async def keep() -> None:
        found.append(await inside())

    async with anyio.create_task_group() as group:
        group.start_soon(keep)
    assert found == [("sess_1", "turn_1", "own", "refund")]
