"""The writer actor over a journal the test controls: batches, order, trouble, and cancellations of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from answerback.errors import StoreClosedError, StoreCorruptError, StoreError
from answerback.store.batch import Applied
from answerback.store.trouble import Trouble
from answerback.store.writer import BATCH_CAP, Writer


class FakeJournal:
    """Keeps batches; lets the test hold a commit and choose what comes of the next ones."""

    def __init__(self, *verdicts: Applied) -> None:
        self.verdicts = list(verdicts)
        self.batches: list[list[Any]] = []
        self.attempts = 0
        self.landed = False
        self.recovered = 0
        self.closed = False
        self.gate: anyio.Event | None = None
        self.entered = anyio.Event()

    async def open(self, interrupted: Callable[[], None]) -> None:
        del interrupted

    async def apply(self, transactions: Sequence[Sequence[Any]], *, number: int) -> Applied:
        self.attempts += 1
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        results = tuple(tuple(1 for _ in transaction) for transaction in transactions)
        if self.verdicts:
            verdict = self.verdicts.pop(0)
            return Applied(
                results=results, trouble=verdict.trouble, detail=verdict.detail, committing=verdict.committing
            )
        self.batches.append([statement for transaction in transactions for statement in transaction])
        return Applied(results=results)

    async def recover(self, number: int) -> bool:
        self.recovered += 1
        return self.landed

    async def close(self) -> None:
        self.closed = True


FULL = Applied(trouble=Trouble.WAIT, detail="SQLITE_FULL")
BROKEN = Applied(trouble=Trouble.BROKEN, detail="SQLITE_IOERR_FSYNC", committing=True)


async def start(journal: FakeJournal) -> Writer:
    writer = Writer(journal)
    with anyio.fail_after(5):
        await writer.start()
    return writer


async def stop(writer: Writer) -> None:
    with anyio.fail_after(5):
        await writer.close()


async def test_while_one_commit_runs_the_next_batch_fills() -> None:
    journal = FakeJournal()
    journal.gate = anyio.Event()
    writer = await start(journal)
    first = writer.submit(["a"], lazy=False)
    with anyio.fail_after(5):
        await journal.entered.wait()
    rest = [writer.submit([name], lazy=False) for name in "bcd"]
    assert not first.done
    assert writer.health.queued == 4
    journal.gate.set()
    with anyio.fail_after(5):
        for receipt in (first, *rest):
            assert list(await receipt.committed()) == [1]
    assert journal.batches == [["a"], ["b", "c", "d"]]
    assert (writer.health.commits, writer.health.statements, writer.health.queued) == (2, 4, 0)
    await stop(writer)


async def test_a_receipt_is_not_done_before_its_commit_came_back() -> None:
    journal = FakeJournal()
    journal.gate = anyio.Event()
    writer = await start(journal)
    receipt = writer.submit(["a"], lazy=False)
    with anyio.fail_after(5):
        await journal.entered.wait()
    with anyio.move_on_after(0.01) as scope:
        await receipt.committed()
    assert scope.cancelled_caught
    assert not receipt.done
    journal.gate.set()
    with anyio.fail_after(5):
        assert list(await receipt.committed()) == [1]
    await stop(writer)


async def test_a_batch_is_bounded_and_a_large_transaction_stays_whole() -> None:
    journal = FakeJournal()
    writer = await start(journal)
    sizes = [BATCH_CAP - 1, 1, 1, BATCH_CAP * 2, 1]
    receipts = [writer.submit([number] * size, lazy=False) for number, size in enumerate(sizes)]
    with anyio.fail_after(5):
        for receipt in receipts:
            await receipt.committed()
    assert [len(batch) for batch in journal.batches] == [BATCH_CAP, 1, BATCH_CAP * 2, 1]
    await stop(writer)


async def test_a_lazy_write_waits_for_company_and_keeps_its_place() -> None:
    journal = FakeJournal()
    writer = await start(journal)
    lazy = writer.submit(["lazy"], lazy=True)
    urgent = writer.submit(["urgent"], lazy=False)
    with anyio.fail_after(5):
        await urgent.committed()
    assert lazy.done
    assert journal.batches == [["lazy", "urgent"]]
    await stop(writer)


async def test_lazy_writes_are_not_lost_when_it_closes() -> None:
    journal = FakeJournal()
    writer = await start(journal)
    receipts = [writer.submit([number], lazy=True) for number in range(3)]
    await stop(writer)
    assert journal.batches == [[0, 1, 2]]
    assert all(receipt.done for receipt in receipts)
    assert journal.closed


async def test_trouble_that_passes_is_retried_until_it_has_passed_and_fails_nothing() -> None:
    journal = FakeJournal(FULL, FULL, FULL)
    writer = await start(journal)
    receipt = writer.submit(["a"], lazy=False)
    seen: set[str | None] = set()
    with anyio.fail_after(5):
        while not receipt.done:
            seen.add(writer.health.degraded)
            await anyio.lowlevel.checkpoint()
    assert any(text is not None and "SQLITE_FULL" in text for text in seen)
    assert list(await receipt.committed()) == [1]
    assert (journal.attempts, journal.batches) == (4, [["a"]])
    assert writer.health.degraded is None
    await stop(writer)


async def test_retries_are_bounded_in_rate_however_many_writes_arrive() -> None:
    journal = FakeJournal(*[FULL] * 1000)
    writer = await start(journal)
    with anyio.move_on_after(0.2):
        while True:
            writer.submit(["a"], lazy=False)
            await anyio.lowlevel.checkpoint()
    assert journal.attempts <= 4
    journal.verdicts.clear()
    await stop(writer)


async def test_a_commit_that_takes_long_shows_as_degraded() -> None:
    now = [0.0]
    journal = FakeJournal()
    journal.gate = anyio.Event()
    writer = Writer(journal, clock=lambda: now[0])
    await writer.start()
    receipt = writer.submit(["a"], lazy=False)
    with anyio.fail_after(5):
        await journal.entered.wait()
    assert writer.health.degraded is None
    now[0] = 1.5
    assert writer.health.degraded is not None
    journal.gate.set()
    with anyio.fail_after(5):
        await receipt.committed()
    assert writer.health.degraded is None
    await stop(writer)


async def test_a_failed_commit_that_landed_is_not_applied_again() -> None:
    journal = FakeJournal(BROKEN)
    journal.landed = True
    writer = await start(journal)
    with anyio.fail_after(5):
        assert list(await writer.submit(["a"], lazy=False).committed()) == [1]
    assert (journal.attempts, journal.recovered, journal.batches) == (1, 1, [])
    await stop(writer)


async def test_a_failed_commit_that_did_not_land_is_applied_again() -> None:
    journal = FakeJournal(BROKEN)
    writer = await start(journal)
    with anyio.fail_after(5):
        assert list(await writer.submit(["a"], lazy=False).committed()) == [1]
    assert (journal.attempts, journal.recovered, journal.batches) == (2, 1, [["a"]])
    await stop(writer)


async def test_the_second_io_error_in_a_row_fails_every_receipt_and_closes() -> None:
    journal = FakeJournal(BROKEN, BROKEN)
    writer = await start(journal)
    receipts = [writer.submit([number], lazy=bool(number)) for number in range(2)]
    with anyio.fail_after(5):
        for receipt in receipts:
            with pytest.raises(StoreCorruptError):
                await receipt.committed()
        with pytest.raises(StoreCorruptError):
            await writer.flush()
    with pytest.raises(StoreClosedError):
        writer.submit(["late"], lazy=False)
    await stop(writer)
    assert journal.closed


async def test_closing_while_nothing_can_be_committed_fails_what_is_left() -> None:
    journal = FakeJournal(*[FULL] * 1000)
    writer = await start(journal)
    receipt = writer.submit(["a"], lazy=False)
    with anyio.fail_after(5):
        await journal.entered.wait()
    writer.abandon()
    await stop(writer)
    with pytest.raises(StoreClosedError):
        await receipt.committed()


async def test_a_failure_to_open_is_raised_where_it_was_asked_for() -> None:
    class Unopenable(FakeJournal):
        async def open(self, interrupted: Callable[[], None]) -> None:
            raise StoreCorruptError("damaged")

    with anyio.fail_after(5):
        with pytest.raises(StoreCorruptError):
            await Writer(Unopenable()).start()


async def test_a_mistake_in_the_journal_fails_receipts_instead_of_hanging_them() -> None:
    class Mistaken(FakeJournal):
        async def apply(self, transactions: Sequence[Sequence[Any]], *, number: int) -> Applied:
            raise ZeroDivisionError

    writer = await start(Mistaken())
    with anyio.fail_after(5):
        with pytest.raises(StoreError, match="ZeroDivisionError"):
            await writer.submit(["a"], lazy=False).committed()
    await stop(writer)


async def test_flush_waits_for_what_is_in_flight() -> None:
    journal = FakeJournal()
    journal.gate = anyio.Event()
    writer = await start(journal)
    receipt = writer.submit(["a"], lazy=False)
    with anyio.fail_after(5):
        await journal.entered.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(writer.flush)
            await anyio.wait_all_tasks_blocked()
            assert not receipt.done
            journal.gate.set()
    assert receipt.done
    await stop(writer)


async def test_a_cancelled_scope_around_start_and_close_loses_nothing() -> None:
    journal = FakeJournal()
    with anyio.CancelScope() as scope:
        writer = await start(journal)
        try:
            writer.submit(["before"], lazy=True)
            scope.cancel()
            await anyio.sleep_forever()
        finally:
            writer.submit(["after"], lazy=False)
            await writer.close()
    assert journal.batches == [["before", "after"]]


asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@asyncio_only
async def test_a_native_cancellation_of_the_opener_leaves_the_writer_alone() -> None:
    journal = FakeJournal()
    writers: list[Writer] = []

    async def opener() -> None:
        writers.append(await start(journal))
        await anyio.sleep_forever()

    task = asyncio.create_task(opener())
    while not writers:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with anyio.fail_after(5):
        assert list(await writers[0].submit(["a"], lazy=False).committed()) == [1]
    await stop(writers[0])


@asyncio_only
async def test_a_timeout_of_asyncio_around_a_wait_leaves_the_write_queued() -> None:
    journal = FakeJournal()
    journal.gate = anyio.Event()
    writer = await start(journal)
    receipt = writer.submit(["a"], lazy=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await receipt.committed()
    journal.gate.set()
    with anyio.fail_after(5):
        assert list(await receipt.committed()) == [1]
    await stop(writer)


def writer_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "answerback store writer"]


@asyncio_only
async def test_cancelling_every_task_does_not_take_the_writer_from_those_who_clean_up() -> None:
    journal = FakeJournal()

    async def program() -> None:
        writer = await start(journal)
        writer.submit(["before"], lazy=True)
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(0.02)
            with anyio.fail_after(5):
                await writer.submit(["outcome"], lazy=False).committed()
            await writer.close()

    task = asyncio.create_task(program())
    while not writer_tasks():
        await asyncio.sleep(0)
    await anyio.wait_all_tasks_blocked()
    for victim in (*writer_tasks(), task):
        victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [statement for batch in journal.batches for statement in batch] == ["before", "outcome"]
    assert journal.closed


@asyncio_only
async def test_a_cancelled_writer_whose_owner_is_gone_commits_what_is_queued_and_ends() -> None:
    journal = FakeJournal()

    async def forgetful() -> None:
        writer = await start(journal)
        writer.submit(["forgotten"], lazy=True)

    await asyncio.create_task(forgetful())
    (task,) = writer_tasks()
    task.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([task])
    assert journal.batches == [["forgotten"]]
    assert journal.closed
