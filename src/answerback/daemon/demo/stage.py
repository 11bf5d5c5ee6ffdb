"""The parent's part: the harness and its script, the kill, and what is read from store, API log and ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import anyio

from answerback.daemon.demo.bank import Bank, Ledger, count
from answerback.daemon.demo.facts import After, Before, CallFact, Helper
from answerback.daemon.demo.process import PATIENCE, DemoError, Worker, run_worker
from answerback.daemon.demo.story import CUSTOMERS, CUT_SHORT, LOST, ORDERS, call_id
from answerback.harness.faults import Fault
from answerback.harness.models.script import Rule, Script
from answerback.harness.models.steps import Call, Calls, Say
from answerback.harness.records import LogEntry
from answerback.harness.run import Harness
from answerback.model import CallRecord, CallState, TransitionRecord
from answerback.store.reader import SQLiteReader

LOOK = 0.01
"""Seconds between looks at the ledger."""
AGAIN_AFTER = 2
"""Seconds the API asks for when it turns the result away: longer than it takes until the kill."""


def script() -> Script:
    """Build what the model does: a greeting, or five calls at once and an answer with what came of them."""
    lookups = [Call("get_customer", {"customer_id": one}, call_id(one)) for one in CUSTOMERS]
    refunds = [Call("refund", {"order_id": one, "cents": ORDERS[one]}, call_id(one)) for one in ORDERS]
    names = ", ".join(f"{{{{ results[{n}].output.name }}}}" for n in range(len(lookups)))
    paid = " and ".join(f"{{{{ results[{len(lookups) + n}].output }}}}" for n in range(len(refunds)))
    answer = f"Both refunds are on their way: {paid}. {names} are told."
    return Script(Rule(when="refund", steps=(Calls((*lookups, *refunds)), Say(answer))), Rule(steps=(Say("Hello."),)))


def turned_away() -> Fault:
    """Build the fault that turns one result away once; official client and runtime both wait as it asks."""
    do = {"status": 503, "headers": {"retry-after": str(AGAIN_AFTER)}}
    return Fault(on="post", where={"call_id": call_id(LOST)}, do=do)


class Stage:
    """One harness, and a folder where stores and ledgers are."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness = harness
        self.folder = folder
        self.store = folder / "answerback.db"

    def __repr__(self) -> str:
        return f"<Stage {self.harness.base_url} {self.folder}>"

    def arguments(
        self, ledger: str, *, store: bool = False, session: str | None = None, hold: bool = False
    ) -> list[str]:
        """Return a worker's options."""
        options = ["--base-url", self.harness.base_url, "--ledger", str(self.folder / ledger)]
        options += ["--store", str(self.store)] if store else []
        options += ["--session", session] if session is not None else []
        return options + (["--hold", CUT_SHORT] if hold else [])

    async def paid(self, ledger: str, worker: Worker) -> None:
        """Wait until the order that will be cut short stands in the ledger.

        Raises:
            DemoError: the worker ended first.
        """
        bank = Bank(self.folder / ledger)
        while not any(refund.order_id == CUT_SHORT for refund in bank.refunds()):
            if worker.ended:
                await worker.until("paid")
            await anyio.sleep(LOOK)

    def count(self, ledger: str) -> Ledger:
        """Count a ledger."""
        return count(Bank(self.folder / ledger).refunds())

    def sent(self, subject: str) -> list[LogEntry]:
        """Return every time a result was sent to the API, refused ones included."""
        wanted = call_id(subject)
        return [entry for entry in self.harness.log if entry.kind == "tool_result" and entry.call_id == wanted]

    async def calls(self) -> list[CallRecord]:
        """Read the calls of the store, in the order of the script."""
        async with SQLiteReader(self.store) as reader:
            found = {record.key.call_id: record for record in await reader.calls()}
        return [found[call_id(subject)] for subject in (*CUSTOMERS, *ORDERS) if call_id(subject) in found]

    async def decided_at(self, subject: str) -> int:
        """Return when the store says a call was found interrupted, in microseconds."""
        (record,) = [one for one in await self.calls() if one.key.call_id == call_id(subject)]
        async with SQLiteReader(self.store) as reader:
            steps: Sequence[TransitionRecord] = await reader.transitions(record.key)
        found = [step.at for step in steps if step.target == CallState.INDETERMINATE]
        if not found:
            raise DemoError(f"the call about {subject} was never found interrupted; the store is {self.store}")
        return found[0]


def fact(record: CallRecord, sent: Sequence[LogEntry]) -> CallFact:
    """Say what is known of a call."""
    arguments: dict[str, str] = json.loads(record.arguments)
    seconds = None
    if record.started_at is not None and record.finished_at is not None:
        seconds = (record.finished_at - record.started_at) / 1e6
    return CallFact(
        name=record.name,
        subject=arguments.get("order_id") or arguments["customer_id"],
        seconds=seconds,
        stored=record.outcome is not None,
        accepted=any(entry.effect for entry in sent),
    )


async def first_life(stage: Stage, started: Callable[[Worker], None]) -> Before:
    """Run the worker until the bank paid, then kill it."""
    stage.harness.faults.add(turned_away())
    async with run_worker(stage.folder, stage.arguments("ours.jsonl", store=True, hold=True)) as worker:
        with anyio.fail_after(PATIENCE):
            await worker.until("session")
            started(worker)
            await stage.paid("ours.jsonl", worker)
            while not stage.sent(LOST):  # noqa: ASYNC110 - the API's log has no event to wait for
                await anyio.sleep(LOOK)
            calls = [fact(record, stage.sent(_subject(record))) for record in await stage.calls()]
            await worker.kill()
    return Before(pid=worker.pid, calls=calls)


async def second_life(stage: Stage) -> After:
    """Start the worker again and let it finish."""
    sent_before = len(stage.sent(LOST))
    async with run_worker(stage.folder, stage.arguments("ours.jsonl", store=True)) as worker:
        with anyio.fail_after(PATIENCE):
            started = await worker.until("started")
            done = await worker.until("done")
    decided = await stage.decided_at(CUT_SHORT)
    verified = worker.find("verified")
    sent = stage.sent(LOST)
    return After(
        pid=worker.pid,
        reconciled_ms=(decided - started["at"]) / 1000,
        resent=len(sent) - sent_before,
        same_bytes=len({entry.element_sha256 for entry in sent}) == 1,
        rerun=[subject for subject in ORDERS if worker.entered(subject)],
        verified=verified["refund"] if verified else None,
        status=done["status"],
        text=done["text"],
    )


async def with_helper(stage: Stage) -> Helper:
    """Play the same with the official client's helper: kill, cancel, wait for idle, ask again."""
    stage.harness.faults.add(turned_away())
    async with run_worker(stage.folder, stage.arguments("helper.jsonl", hold=True)) as first:
        with anyio.fail_after(PATIENCE):
            session = await first.until("session")
            await stage.paid("helper.jsonl", first)
            await first.kill()
    async with run_worker(stage.folder, stage.arguments("helper.jsonl", session=session["id"])) as second:
        with anyio.fail_after(PATIENCE):
            await second.until("done")
    return Helper(openai=metadata.version("openai"), pids=(first.pid, second.pid), ledger=stage.count("helper.jsonl"))


def _subject(record: CallRecord) -> str:
    return next(one for one in (*CUSTOMERS, *ORDERS) if call_id(one) == record.key.call_id)
