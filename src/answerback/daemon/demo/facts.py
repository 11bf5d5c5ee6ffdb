"""What the demonstration measured; every figure it prints stands here, and `--json` prints all of it."""

from __future__ import annotations

import msgspec

from answerback.daemon.demo.bank import Ledger


class CallFact(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as store and API knew it just before the kill."""

    name: str
    subject: str
    seconds: float | None
    """From its start to its stored result; None while it ran."""
    stored: bool
    accepted: bool
    """Whether the API took its result."""


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The first life of the worker with the runtime."""

    pid: int
    calls: list[CallFact]


class After(msgspec.Struct, frozen=True, kw_only=True):
    """Its second life."""

    pid: int
    reconciled_ms: float
    """From the start of the runtime to the decision about the call that was cut short."""
    resent: int
    """How often the stored result of the other refund was sent after the restart."""
    same_bytes: bool
    """Whether every time it was sent, in both lives, its bytes were the same."""
    rerun: list[str]
    """Orders whose handler was entered again."""
    verified: str | None
    """The refund the bank named when the verify hook asked about the call that was cut short."""
    status: str
    text: str


class Helper(msgspec.Struct, frozen=True, kw_only=True):
    """The same script and kill with the official client's helper."""

    openai: str
    """The client's version."""
    pids: tuple[int, int]
    ledger: Ledger


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    folder: str
    seconds: float
    before: Before
    after: After
    ledger: Ledger
    helper: Helper

    @property
    def kept(self) -> bool:
        """Whether the promise was kept: every order refunded, none of them twice."""
        return self.ledger.orders == self.ledger.refunds == 2 and self.after.status == "completed"
