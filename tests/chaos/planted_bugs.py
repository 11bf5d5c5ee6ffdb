"""Bugs to plant in the product's code, in a worker process: name -> the patch. Each must be caught by a named test."""

from __future__ import annotations

import contextvars
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from answerback.actors import reconcile
from answerback.actors.job import Queue
from answerback.actors.journal import Journal
from answerback.actors.kernel import Kernel
from answerback.actors.messages import Asked, Effect, Reading, Reconcile
from answerback.actors.session_state import SessionState
from answerback.handlers.arguments import canonical_hash
from answerback.handlers.detached import Detached
from answerback.handlers.tool import Tool
from answerback.model import CallKey, CallState
from answerback.store.base import InsertCall, Receipt, UpdateCall, Write
from answerback.store.sqlite import SQLiteStore
from answerback.wire import inputs
from answerback.wire.events import Event
from chaos.patching import replace

TURNS_LATER = 3
"""Turns of the event loop by which a task that queues an observation is late."""


class _Claims:
    """A receipt that says every statement applied, without or after waiting for the true one."""

    def __init__(self, receipt: Receipt, *, count: int, waits: bool) -> None:
        self._receipt = receipt
        self._count = count
        self._waits = waits

    @property
    def done(self) -> bool:
        return True

    async def committed(self) -> Sequence[int]:
        if self._waits:
            await self._receipt.committed()
        return (1,) * self._count


def _claim(target: CallState, *, waits: bool) -> None:
    """Answer writes that move a call to `target` with a receipt that claims success."""
    original = SQLiteStore.write

    def write(self: SQLiteStore, *statements: Write, lazy: bool = False) -> Receipt:
        receipt = original(self, *statements, lazy=lazy)
        if any(isinstance(one, UpdateCall) and one.target is target for one in statements):
            return _Claims(receipt, count=len(statements), waits=waits)
        return receipt

    replace(SQLiteStore, "write", write)


def skip_started_wait() -> None:
    """Enter the handler while its STARTED row is still queued."""
    _claim(CallState.STARTED, waits=False)


def start_count_ignored() -> None:
    """Wait for the commit of a START, and do not look whether it applied."""
    _claim(CallState.STARTED, waits=True)


def submit_before_commit() -> None:
    """Send a result while its FINISHED row is still queued."""
    _claim(CallState.FINISHED, waits=False)


def start_overtakes_observation() -> None:
    """Queue the first row of a call from a task, so that what the actor queues next comes before it."""
    original = SQLiteStore.write

    def write(self: SQLiteStore, *statements: Write, lazy: bool = False) -> Any:
        if not any(isinstance(one, InsertCall) for one in statements):
            return original(self, *statements, lazy=lazy)

        async def later() -> None:
            for _ in range(TURNS_LATER):
                await anyio.lowlevel.checkpoint()
            original(self, *statements, lazy=lazy)

        Detached(later, context=contextvars.copy_context(), name="observation")
        return None

    replace(SQLiteStore, "write", write)


def new_key_per_retry() -> None:
    """Give every POST an Idempotency-Key of its own."""

    def results_key(members: Iterable[tuple[str, str, str, int]]) -> str:
        del members
        return secrets.token_hex(16)

    replace(inputs, "results_key", results_key)


def rerun_on_resubmit() -> None:
    """Run the handler again when the server lost what it had accepted."""
    original = reconcile._submitted

    def submitted(entry: reconcile.Entry, reading: Reading, context: reconcile.Context) -> list[reconcile.Decision]:
        decisions = original(entry, reading, context)
        lost = any(isinstance(one, reconcile.Submit) and one.again for one in decisions)
        return [reconcile.Reopen(entry.record.key, CallState.REQUESTED)] if lost else decisions

    replace(reconcile, "_submitted", submitted)


def drop_token() -> None:
    """Let any attempt store the outcome of a call, not only the current one."""
    original = Journal.finish

    async def finish(self: Journal, *arguments: Any, token: str | None, **options: Any) -> bool:
        del token
        return await original(self, *arguments, token=None, **options)

    replace(Journal, "finish", finish)


def sequential_handlers() -> None:
    """Run one handler at a time, whatever the limits say."""
    one = anyio.CapacityLimiter(1)
    original = Queue.__init__

    def init(self: Queue, limiters: list[anyio.CapacityLimiter]) -> None:
        del limiters
        original(self, [one])

    replace(Queue, "__init__", init)


def answer_by_item_added() -> None:
    """Take the item of a function call for a request to answer it."""
    original = SessionState._item

    def item(self: SessionState, event: Event) -> list[Effect]:
        seen = event.item
        turn_id = (seen.turn_id if seen is not None else None) or event.turn_id
        if seen is None or seen.type != "function_call" or not seen.call_id or not turn_id:
            return original(self, event)
        arguments = bytes(seen.arguments)
        asked = Asked(
            name=seen.name or "", arguments=arguments, arguments_hash=canonical_hash(arguments), is_async=False
        )
        self.asked = {**self.asked, CallKey(self.session_id, turn_id, seen.call_id): asked}
        return [Reconcile(Reading(self.asked))]

    replace(SessionState, "_item", item)


def verify_before_settle() -> None:
    """Ask the verify hook at once."""

    def at_once(tool: object) -> float:
        del tool
        return 0.0

    replace(Tool, "settle", property(at_once))


def writer_first() -> None:
    """Close the writer when the runtime begins to stop, before the handlers are done."""
    original = Kernel.stop

    def stop(self: Kernel, patience: float) -> None:
        assert isinstance(self.store, SQLiteStore)
        writer = self.store._writer
        assert writer is not None
        writer.abandon()
        original(self, patience)

    replace(Kernel, "stop", stop)


BUGS: dict[str, Callable[[], None]] = {
    "skip the STARTED wait": skip_started_wait,
    "START overtakes T0": start_overtakes_observation,
    "START count ignored": start_count_ignored,
    "submit before commit": submit_before_commit,
    "new key per retry": new_key_per_retry,
    "rerun on resubmit": rerun_on_resubmit,
    "drop the token CAS": drop_token,
    "sequential handlers": sequential_handlers,
    "answer by item.added": answer_by_item_added,
    "verify before settle": verify_before_settle,
    "writer killed before handlers": writer_first,
}
