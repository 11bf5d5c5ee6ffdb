"""A call whose first attempt comes back when a second one has begun: whose outcome is stored?

It goes through the product's journal and store, without the runtime around them: there a forgotten attempt is handed
to the `late` table before it can come this far, and the token is what holds if that ever fails.
"""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import msgspec

from answerback.actors.journal import Journal
from answerback.actors.messages import Asked
from answerback.handlers.arguments import canonical_hash
from answerback.model import CallKey, CallState, Outcome
from answerback.store.sqlite import SQLiteStore
from chaos.kill_case import Case
from chaos.kill_worker import STORE
from chaos.planted_bugs import BUGS

SESSION = "sess_stale"


def run(payload: bytes) -> None:
    """Let both attempts store an outcome, the forgotten one first."""
    case = msgspec.json.decode(payload, type=Case)
    for bug in case.bugs:
        BUGS[bug]()
    anyio.run(_work, case, backend=case.backend)


async def _work(case: Case) -> None:
    key = CallKey(SESSION, "turn_1", case.id)
    asked = Asked(name=case.tool_name, arguments=b'{"n":0}', arguments_hash=canonical_hash(b'{"n":0}'), is_async=False)
    running = (CallState.STARTED, CallState.INDETERMINATE)
    async with SQLiteStore(Path(case.folder) / STORE) as store:
        journal = Journal(SESSION, store, now=lambda: time.time_ns() // 1000)
        journal.observe(key, asked, state=CallState.REQUESTED, reason=None)
        _, first = journal.start(key, sources=(CallState.REQUESTED,), effects="idempotent")
        _, second = journal.start(key, sources=running, effects="idempotent")
        for record in (first, second):
            outcome = Outcome(kind="ok", output=f"paid by attempt {record.attempt} of process 1")
            await journal.finish(key, outcome, token=record.token, sources=running)
