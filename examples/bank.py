"""A stand-in for a bank: a ledger on a file, one line a refund, on the disk before the answer.

It would pay the same order twice without a word, so that a runtime that asks twice is found out.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import anyio.to_thread


@dataclass(frozen=True)
class Refund:
    """One line of the ledger."""

    id: str
    order_id: str
    cents: int
    idempotency_key: str


class Bank:
    """Pays refunds. A request travels `seconds` to the bank, and its answer as long back."""

    def __init__(self, ledger: str | Path, *, seconds: float = 0.2) -> None:
        self._ledger = Path(ledger)
        self._seconds = seconds
        self._till = anyio.Lock()

    async def refund(self, order_id: str, cents: int, *, idempotency_key: str) -> str:
        """Pay, and return the refund's id."""
        await anyio.sleep(self._seconds)
        async with self._till:
            refund = await anyio.to_thread.run_sync(self._write, order_id, cents, idempotency_key)
        await anyio.sleep(self._seconds)
        return refund

    async def find(self, idempotency_key: str) -> Refund | None:
        """Return the refund that was paid under this key, if there is one."""
        refunds = await anyio.to_thread.run_sync(self.refunds)
        return next((refund for refund in refunds if refund.idempotency_key == idempotency_key), None)

    def refunds(self) -> list[Refund]:
        """Read the ledger."""
        if not self._ledger.exists():
            return []
        return [Refund(**json.loads(line)) for line in self._ledger.read_text(encoding="utf-8").splitlines()]

    def _write(self, order_id: str, cents: int, idempotency_key: str) -> str:
        refund = Refund(f"rf_{len(self.refunds()) + 1}", order_id, cents, idempotency_key)
        with self._ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(refund)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return refund.id
