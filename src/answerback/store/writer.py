"""The writer actor: an ordered queue of transactions, committed in batches by one task of its own.

Natural batching: there is no timer; while one commit runs, the next batch fills. The task belongs to nobody (see
`detached`), so no cancellation of a caller can lose a queued write; it ends when it is closed. It knows no database:
a `Journal` applies the batches.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import anyio

from answerback.errors import StoreClosedError, StoreCorruptError, StoreError
from answerback.store.base import LAZY_DELAY, StoreHealth
from answerback.store.batch import Applied
from answerback.store.chores import Chores
from answerback.store.detached import Detached
from answerback.store.receipt import QueuedWrite
from answerback.store.trouble import Trouble

logger = logging.getLogger("answerback.store")

T = TypeVar("T")

BATCH_CAP = 256
"""Waited-for statements per batch: bounds how long a commit takes, and so how long the first waiter in it waits."""
LAZY_CAP = 768
"""Lazy statements that may ride in a batch besides; they wait for nothing, so they are worth no fsync of their own."""
CLOSE_PATIENCE = 10.0
"""Seconds `aclose` goes on retrying when writes cannot be committed, before their receipts fail."""
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Seconds between attempts while degraded; the last one repeats."""
SLOW_COMMIT = 1.0
"""Seconds after which a commit that has not come back is called degraded, whatever holds it up."""


class Journal(Protocol):
    """Where a writer's batches go. Its methods are called by the writer's task only, one at a time."""

    async def open(self, interrupted: Callable[[], None]) -> None:
        """Open for writing; call `interrupted` for a cancellation that arrives while a batch is applied."""
        ...

    async def apply(self, transactions: Sequence[Sequence[Any]], *, number: int) -> Applied:
        """Commit these transactions together."""
        ...

    async def recover(self, number: int) -> bool:
        """Open again after an I/O error; return whether batch `number` is on stable storage.

        Raises:
            StoreError: it cannot be opened again.
        """
        ...

    async def close(self) -> None:
        """Close in order."""
        ...


class Writer:
    """The queue and its task. `start` it, `submit` transactions, `close` it."""

    def __init__(self, journal: Journal, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._clock = clock
        self._detached = Detached(abandoned=self.abandon)
        self._queue: deque[QueuedWrite] = deque()
        self._chores = Chores()
        self._batch: list[QueuedWrite] = []
        self._wake = anyio.Event()
        self._gathering = anyio.Event()
        self._committing = anyio.Event()
        self._opened = anyio.Event()
        self._finished = anyio.Event()
        self._open_error: BaseException | None = None
        self._submitted = self._taken = self._urgent = 0
        self._commits = self._statements = self._broken = 0
        self._degraded: str | None = None
        self._in_flight: float | None = None
        self._commit_seconds = 0.0
        self._closing = False
        self._patience = CLOSE_PATIENCE
        self._fatal: StoreError | None = None

    def __repr__(self) -> str:
        state = "closed" if self._finished.is_set() else "closing" if self._closing else "open"
        return f"<Writer {state}, {self.health.queued} queued, {self._commits} commits>"

    @property
    def closed(self) -> bool:
        """Whether it takes no more writes."""
        return self._closing or self._fatal is not None

    @property
    def finished(self) -> bool:
        """Whether its task is over and the journal closed."""
        return self._finished.is_set()

    @property
    def health(self) -> StoreHealth:
        """What it did so far, and why it is waiting if it is."""
        degraded = self._degraded
        if degraded is None and self._in_flight is not None and self._clock() - self._in_flight > SLOW_COMMIT:
            degraded = f"a commit has been running for more than {SLOW_COMMIT:g} s"
        queued = len(self._queue) + len(self._batch)
        return StoreHealth(
            degraded=degraded,
            queued=queued,
            commits=self._commits,
            statements=self._statements,
            commit_seconds=self._commit_seconds,
        )

    async def start(self) -> None:
        """Start the task and wait until the journal is open. When cancelled, it is closed again."""
        self._detached.start(self._run, name="answerback store writer")
        try:
            await self._opened.wait()
        except BaseException:
            self.abandon()
            raise
        if self._open_error is not None:
            raise self._open_error

    def submit(self, statements: Sequence[Any], *, lazy: bool) -> QueuedWrite:
        """Queue one transaction behind all others and return its receipt.

        Raises:
            StoreClosedError: the writer is closed or closing.
        """
        if self.closed:
            raise StoreClosedError("the store is closed: open it again before writing")
        self._submitted += 1
        entry = QueuedWrite(self._submitted, statements, lazy=lazy, join=self.join)
        if not statements:
            entry.finish(())
            return entry
        # The first lazy write of an idle spell sets the clock for all that follow.
        first = not self._queue
        self._queue.append(entry)
        if not lazy:
            self.urge(entry.number)
        elif first:
            self._wake.set()
        return entry

    def urge(self, number: int) -> None:
        """Ask for everything up to transaction `number` to be committed without further delay."""
        if number > self._urgent:
            self._urgent = number
            self._wake.set()

    def join(self, number: int) -> anyio.Event:
        """Make transaction `number` urgent; return what is set when the batch it is in, or may get into, is over.

        One event serves a whole batch, so a waiter looks again: its transaction may not have fitted in.
        """
        self.urge(number)
        return self._committing if number <= self._taken else self._gathering

    async def flush(self) -> None:
        """Wait until everything queued so far is committed.

        Raises:
            StoreError: it will not be; single refused transactions do not count.
        """
        last = self._queue[-1] if self._queue else self._batch[-1] if self._batch else None
        if last is not None:
            await last.wait()
        if self._fatal is not None:
            raise self._fatal

    async def between(self, step: Callable[[], Awaitable[T]]) -> T:
        """Let the writer's task run a step on the journal, between two batches; return what it returns.

        Raises:
            StoreClosedError: the writer is closed or closing.
        """
        if self.closed:
            raise StoreClosedError("the store is closed: open it again")
        chore = self._chores.add(step)
        self._wake.set()
        found: T = await chore.result()
        return found

    async def close(self) -> None:
        """Commit what is queued, close the journal, and return when that is done. Never cancelled half-way."""
        self._closing = True
        self._wake.set()
        with anyio.CancelScope(shield=True):
            await self._finished.wait()

    def abandon(self) -> None:
        """Close without anyone waiting for it: commit what is queued if that works at once, then end."""
        self._closing = True
        self._patience = 0.0
        self._wake.set()

    def crash(self) -> None:
        """Drop everything uncommitted, as the death of the process would, and end."""
        self._die(StoreClosedError("the store crashed before this was committed"))
        self.abandon()

    # The task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._see_through(lambda: self._journal.open(self._interrupted))
        except BaseException as error:  # noqa: BLE001 - raised by `start`, in the task that asked
            self._open_error = error
            self._closing = True
            self._opened.set()
            self._finished.set()
            return
        self._opened.set()
        try:
            await self._serve()
        except Exception as error:
            logger.exception("the store's writer failed", extra={"error": type(error).__name__})
            self._die(StoreError(f"the store's writer failed ({type(error).__name__}); open the store again"))
        finally:
            self._closing = True
            self._refuse(StoreClosedError("the store was closed before this was committed"))
            await self._close_journal()
            self._finished.set()

    async def _close_journal(self) -> None:
        try:
            await self._see_through(self._journal.close)
        except Exception as error:  # noqa: BLE001 - all that was promised is committed; there is nobody to tell
            logger.warning("the store could not be closed in order", extra={"error": type(error).__name__})

    async def _serve(self) -> None:
        while self._fatal is None:
            await self._chores.run_one(self._see_through)
            while not (self._closing or self._chores or self._urgent > self._taken):
                if await self._pause(LAZY_DELAY if self._queue else None):
                    break
            self._batch = self._take()
            if self._batch:
                self._committing, self._gathering = self._gathering, anyio.Event()
                await self._settle(self._batch)
                self._batch = []
                self._committing.set()
            elif self._closing:
                return

    async def _pause(self, seconds: float | None) -> bool:
        """Wait to be woken; return whether the time was over first."""
        self._wake = anyio.Event()
        try:
            with anyio.move_on_after(seconds):
                await self._wake.wait()
                return False
        except anyio.get_cancelled_exc_class():
            self._interrupted()
            return False
        return True

    def _interrupted(self) -> None:
        """Answer a cancellation of the task itself: go on, or finish what is queued and end."""
        if not self._detached.absorb():
            self.abandon()

    def _take(self) -> list[QueuedWrite]:
        taken: list[QueuedWrite] = []
        room = {False: BATCH_CAP, True: LAZY_CAP}
        while self._queue:
            entry = self._queue[0]
            size = len(entry.statements)
            if taken and size > room[entry.lazy]:
                break
            room[entry.lazy] -= size
            taken.append(self._queue.popleft())
            self._taken = entry.number
        return taken

    async def _settle(self, batch: list[QueuedWrite]) -> None:
        """Apply one batch until it is committed, refused, or there is no hope left."""
        number = self._commits + 1
        deadline: float | None = None
        attempts = 0
        while self._fatal is None:
            applied = await self._apply(batch, number)
            if applied.trouble is Trouble.BROKEN:
                applied = await self._recover(applied, number)
            if applied.trouble is None:
                self._finish(batch, applied)
                return
            if applied.trouble is Trouble.REFUSED:
                # Even transaction by transaction: the statement at fault is one of ours around them.
                self._die(StoreError(f"the store cannot commit ({applied.detail}); check the file, open it again"))
                return
            if self._closing and deadline is None:
                deadline = anyio.current_time() + self._patience
            if deadline is not None and anyio.current_time() >= deadline:
                self._die(StoreClosedError(f"the store was closed while it could not commit ({applied.detail})"))
                return
            if applied.trouble is Trouble.WAIT:
                self._degrade(applied.detail)
                await self._wait_to_retry(RETRY_DELAYS[min(attempts, len(RETRY_DELAYS) - 1)])
                attempts += 1
                # Giving room back is one of them.
                await self._chores.run_one(self._see_through)

    async def _apply(self, batch: list[QueuedWrite], number: int) -> Applied:
        self._in_flight = began = self._clock()
        try:
            transactions = [entry.statements for entry in batch]
            return await self._see_through(lambda: self._journal.apply(transactions, number=number))
        finally:
            self._in_flight = None
            self._commit_seconds += self._clock() - began

    async def _see_through(self, step: Callable[[], Awaitable[T]]) -> T:
        """Finish a step of the journal whatever cancels this task meanwhile.

        A shield holds against anyio's and trio's cancellations, not against asyncio's own. A step either outlasts
        those itself or leaves nothing behind, so that it can be repeated.
        """
        results: list[T] = []
        while not results:
            try:
                with anyio.CancelScope(shield=True):
                    results.append(await step())
            except anyio.get_cancelled_exc_class():
                self._interrupted()
        return results[0]

    async def _recover(self, applied: Applied, number: int) -> Applied:
        """Open the journal again and find out what a failed commit left. A second failure in a row is the end."""
        self._broken += 1
        self._degraded = f"the file was opened again after {applied.detail}"
        logger.error("I/O error in the store", extra={"error": applied.detail, "in_a_row": self._broken})
        if self._broken > 1:
            self._die(StoreCorruptError(f"the store failed twice in a row ({applied.detail}): check disk and file"))
            return applied
        try:
            landed = await self._see_through(lambda: self._journal.recover(number))
        except StoreError as error:
            self._die(StoreCorruptError(f"the store failed ({applied.detail}) and cannot be opened again: {error}"))
            return applied
        if landed and applied.committing:
            logger.warning("a commit that reported an error is on stable storage", extra={"batch": number})
            return Applied(results=applied.results)
        return applied

    async def _wait_to_retry(self, seconds: float) -> None:
        """Wait between two attempts. New writes do not shorten it, closing does (once)."""
        until = anyio.current_time() + seconds
        closing = self._closing
        while (left := until - anyio.current_time()) > 0 and closing == self._closing:
            if closing:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(left)
            else:
                await self._pause(left)

    def _finish(self, batch: list[QueuedWrite], applied: Applied) -> None:
        self._commits += 1
        self._broken = 0
        if self._degraded is not None:
            logger.info("the store commits again", extra={"queued": len(self._queue)})
            self._degraded = None
        for entry, result in zip(batch, applied.results, strict=True):
            self._statements += len(entry.statements)
            entry.finish(result)

    def _degrade(self, detail: str) -> None:
        if self._degraded is None:
            logger.warning("the store is degraded: writes are waiting", extra={"error": detail})
        self._degraded = f"commits fail with {detail}; they are retried, nothing is lost"

    def _die(self, error: StoreError) -> None:
        """Take no more writes; everything not committed fails with `error`."""
        self._fatal = error
        self._degraded = str(error)
        self._refuse(error)

    def _refuse(self, error: StoreError) -> None:
        for entry in (*self._batch, *self._queue):
            entry.finish(error)
        self._queue.clear()
        self._chores.refuse(error)
        self._committing.set()
        self._gathering.set()
