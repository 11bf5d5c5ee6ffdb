"""The program that is killed: a real Runtime, an unchanged AsyncOpenAI and a real SQLiteStore, told what by a `Case`."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
from openai import AsyncOpenAI

from answerback import Handlers, Happened, NotHappened, Runtime, SessionRef, SQLiteStore, ToolContext
from answerback.actors import reconcile
from answerback.model import CallState
from answerback.store.base import Receipt, UpdateCall, Write
from answerback.store.writer import Writer
from chaos import late_bank
from chaos.kill_case import Case, Line
from chaos.kill_steps import HOOKS, Trigger, kill_self
from chaos.patching import replace
from chaos.planted_bugs import BUGS

LOG = "handlers.log"
STORE = "calls.db"
MARKER = "reached"
RESULT = "result.json"


def run(payload: bytes) -> None:
    """Run one case to its end, or to the step where it is killed."""
    case = msgspec.json.decode(payload, type=Case)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(levelname)s %(message)s")
    anyio.run(_work, case, backend=case.backend)


async def _work(case: Case) -> None:
    folder = Path(case.folder)
    with anyio.CancelScope() as scope:
        end = kill_self if case.ending == "kill" else scope.cancel
        trigger = Trigger(case.step, occurrence=case.occurrence, marker=folder / MARKER, end=end)
        _prepare(case, trigger)
        handlers = _handlers(case, folder / LOG, trigger)
        async with (
            AsyncOpenAI(api_key="sk-harness", base_url=case.base_url) as client,
            Runtime(
                client,
                handlers=handlers,
                store=SQLiteStore(folder / STORE),
                poll_interval=case.poll_interval,
            ) as runtime,
        ):
            session = await runtime.open(
                case.id, agent={"model": "scripted"}, environment={"type": "none"}, input=case.id
            )
            turn = await session.wait(timeout=case.patience)
            with anyio.fail_after(case.patience):
                await _closed(runtime, session)
            result = {"status": turn.status, "output_text": turn.output_text}
            (folder / RESULT).write_bytes(msgspec.json.encode(result))


async def _closed(runtime: Runtime, session: SessionRef) -> None:
    """Wait until no row is open: the last acceptance may be younger than the reading that ended the turn."""
    while any(one.open_calls > one.indeterminate for one in runtime.status().sessions):
        session.wake()
        await anyio.sleep(0.02)


def _prepare(case: Case, trigger: Trigger) -> None:
    if case.slow_commit:
        _slow_down(case.slow_commit)
    if case.submit_grace is not None:
        reconcile.SUBMIT_GRACE = int(case.submit_grace * 1e6)
    for bug in case.bugs:
        BUGS[bug]()
    if case.step is not None:
        HOOKS[case.step](trigger)


def _slow_down(seconds: float) -> None:
    """Let the commits of T1 and T2 wait, as on a slow disk, so that "before the commit" is a time one can hit."""
    original_write, original_apply = SQLiteStore.write, Writer._apply
    queued: list[UpdateCall] = []

    def write(self: SQLiteStore, *statements: Write, lazy: bool = False) -> Receipt:
        moves = [one for one in statements if isinstance(one, UpdateCall)]
        queued.extend(move for move in moves if move.target in {CallState.STARTED, CallState.FINISHED})
        return original_write(self, *statements, lazy=lazy)

    async def apply(self: Writer, *arguments: Any) -> Any:
        if queued:
            queued.clear()
            await anyio.sleep(seconds)
        return await original_apply(self, *arguments)

    replace(SQLiteStore, "write", write)
    replace(Writer, "_apply", apply)


def _handlers(case: Case, log: Path, trigger: Trigger) -> Handlers:
    handlers = Handlers()

    async def pay(context: ToolContext, n: int) -> str:
        """Pay the n-th bill."""
        note(log, line("entry", context, case))
        trigger.hit("entered")
        if case.late_effect:
            _send_to_bank(log, line("effect", context, case), case.late_effect)
        await anyio.sleep(case.hold)
        if not case.late_effect:
            note(log, line("effect", context, case))
        trigger.hit("effect")
        # Another attempt, or another process, answers with other bytes: a result computed twice shows.
        return f"bill {n} paid by attempt {context.attempt} of process {os.getpid()}"

    tool = handlers.tool(name=case.tool_name, effects=case.effects, settle=case.settle)(pay)
    if case.tool == "verified":

        @tool.verify
        async def _(context: ToolContext, n: int) -> Happened[str] | NotHappened:
            paid = any(
                known.what == "effect" and known.idempotency_key == context.idempotency_key for known in read_lines(log)
            )
            note(log, line("verdict", context, case, verdict="Happened" if paid else "NotHappened"))
            return Happened(f"bill {n} was paid") if paid else NotHappened()

    return handlers


def line(what: str, context: ToolContext, case: Case, *, verdict: str | None = None) -> Line:
    """Build a line about a call."""
    return msgspec.convert(
        {
            "what": what,
            "session_id": context.session_id,
            "turn_id": context.turn_id,
            "call_id": context.call_id,
            "attempt": context.attempt,
            "idempotency_key": context.idempotency_key,
            "effects": case.effects,
            "pid": os.getpid(),
            "verdict": verdict,
        },
        Line,
    )


def note(log: Path, entry: Line) -> None:
    """Append one line and wait for stable storage."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(entry) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(log: Path) -> list[Line]:
    """Read a log; a missing one is empty."""
    if not log.exists():
        return []
    return [msgspec.json.decode(text, type=Line) for text in log.read_bytes().splitlines()]


def _send_to_bank(log: Path, entry: Line, seconds: float) -> None:
    """Hand the effect to a process of its own, which carries it out later whatever becomes of this one."""
    command = [sys.executable, "-S", "-E", late_bank.__file__, str(log), msgspec.json.encode(entry).decode()]
    subprocess.Popen([*command, str(seconds)], start_new_session=True)
