"""A fake bank: a ledger on a file, one line a refund, on stable storage before the bank answers.

It never refuses the same order twice, although it is told an idempotency key: whoever asks it twice pays twice, and
the ledger shows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from answerback.daemon.demo.story import PAY_SECONDS


class Refund(msgspec.Struct, frozen=True):
    """One line of the ledger."""

    id: str
    order_id: str
    cents: int
    idempotency_key: str | None = None


class Ledger(msgspec.Struct, frozen=True):
    """What a ledger comes to."""

    orders: int
    refunds: int

    @property
    def duplicates(self) -> int:
        """How many refunds were paid for an order that had one."""
        return self.refunds - self.orders


def count(refunds: Sequence[Refund]) -> Ledger:
    """Count orders and refunds."""
    return Ledger(orders=len({refund.order_id for refund in refunds}), refunds=len(refunds))


class Bank:
    """Pays refunds, one at a time; each takes `seconds`."""

    def __init__(self, path: Path, *, seconds: float = PAY_SECONDS) -> None:
        self._path = path
        self._seconds = seconds
        self._till = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Bank {self._path.name}>"

    async def refund(self, order_id: str, cents: int, *, idempotency_key: str | None = None) -> str:
        """Pay, and return the refund's id."""
        async with self._till:
            await anyio.sleep(self._seconds)
            return await anyio.to_thread.run_sync(self._write, order_id, cents, idempotency_key)

    async def find(self, idempotency_key: str) -> Refund | None:
        """Return the refund that was paid under this key, if there is one."""
        paid = await anyio.to_thread.run_sync(self.refunds)
        return next((refund for refund in paid if refund.idempotency_key == idempotency_key), None)

    def refunds(self) -> list[Refund]:
        """Read the ledger; a line that is still being written is not paid yet."""
        if not self._path.exists():
            return []
        whole = self._path.read_bytes().rpartition(b"\n")[0]
        return [msgspec.json.decode(line, type=Refund) for line in whole.splitlines()]

    def _write(self, order_id: str, cents: int, idempotency_key: str | None) -> str:
        refund = Refund(f"rf_{901 + len(self.refunds())}", order_id, cents, idempotency_key)
        line = json.dumps(msgspec.to_builtins(refund)) + "\n"
        with self._path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        return refund.id
