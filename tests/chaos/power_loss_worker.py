"""A store at work, to be recorded; run by `power_loss` as a program under strace.

Arguments: folder, synchronous, calls, a descriptor. Two lives, so that closing and opening again are recorded as well.
What a receipt promised is written to the descriptor as one line at the moment it was promised.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal, cast

import anyio

from answerback.model import CallKey, CallState, InputRecord, SessionRecord
from answerback.store import opening
from answerback.store.base import PutInput, PutSession, UpdateCall
from answerback.store.conformance.builders import finished, observed, started
from answerback.store.sqlite import SQLiteStore

SESSION = "sess_1"


def key(number: int) -> CallKey:
    """Name the call of a number."""
    return CallKey(SESSION, "turn_1", f"c{number}")


def outcome(number: int) -> bytes:
    """Return the result of a call: longer than a page now and then, so that it spills over."""
    return b'{"call":%d,"text":"%s"}' % (number, b"x" * (300 if number % 3 else 6_000))


async def one_call(store: SQLiteStore, number: int, ack: int) -> None:
    """Bring a call from its first row to its acceptance, and tell what was promised on the way."""
    # Two rows in one transaction: neither may ever be there without the other.
    heard = PutInput(InputRecord(session_id=SESSION, key=f"k{number}", element=b'"hello"'))
    store.write(observed(key(number), arguments=b'{"n":%d}' % number), heard)
    await store.write(started(key(number))).committed()
    os.write(ack, b"started %d\n" % number)
    await store.write(finished(key(number), outcome=outcome(number))).committed()
    os.write(ack, b"finished %d\n" % number)
    store.write(UpdateCall(key=key(number), sources=(CallState.FINISHED,), target=CallState.SUBMITTED, at=4), lazy=True)


async def main(folder: Path, synchronous: Literal["FULL", "NORMAL", "OFF"], calls: int, ack: int) -> None:
    """Work, close, open again, work."""
    for life in range(2):
        async with SQLiteStore(folder / "calls.db", synchronous=synchronous) as store:
            if not life:
                await store.write(PutSession(SessionRecord(local_id="l", session_id=SESSION))).committed()
            for number in range(life * calls, (life + 1) * calls):
                await one_call(store, number, ack)


if __name__ == "__main__":
    # A checkpoint every few commits instead of every 16 MiB: it is what writes into the file itself.
    opening._CHECKPOINT_PAGES = 12
    mode = cast("Literal['FULL', 'NORMAL', 'OFF']", sys.argv[2])
    anyio.run(main, Path(sys.argv[1]), mode, int(sys.argv[3]), int(sys.argv[4]))
