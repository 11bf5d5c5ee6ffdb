"""One simulated run: a scripted session on the harness, answered by runtimes that die and are started again.

Everything that happens follows from a seed: the faults, the knobs, how long things take, and at which write to the
store each runtime ends. A crash loses every write that was not committed, and cancels what was running; leaving the
block with no patience is the other way to end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import anyio
import msgspec

from answerback import Handlers, Happened, NotHappened, Retry, Runtime, ToolContext, ToolError
from answerback.errors import StoreError
from answerback.harness.faults import seeded_faults
from answerback.model import CallRecord, SessionRecord
from answerback.store.base import Receipt, Write
from answerback.store.memory import MemoryStore
from answerback.store.sqlite import SQLiteStore
from answerback.testing import Fault, Harness, Script, call, calls, reason, rule, run_harness, say, sleep

PATIENCE = 3600.0
"""Virtual seconds after which a run that has not ended never will."""
EPOCH = 1_900_000_000

SCRIPT = Script(
    rule(
        "first",
        reason("Look at the orders."),
        calls(
            *(call("refund", order=order) for order in (1, 2, 3)),
            *(call("label", order=order) for order in (4, 5)),
            call("look", order=6),
            call("flaky", order=7),
            call("refuse", order=8),
        ),
        sleep(0.05),
        call("refund", order=9),
        say("First: {{ results | length }} results."),
    ),
    rule("second", calls(call("refund", order=10), call("label", order=11)), say("Second is done.")),
)


class Ending(msgspec.Struct, frozen=True):
    """How a runtime ends: at which of its writes, and whether it loses what is not committed."""

    write: int
    kind: Literal["crash", "leave"]


class Plan(msgspec.Struct, frozen=True):
    """What goes wrong in one run."""

    seed: int
    knobs: dict[str, Any] = {}
    faults: tuple[Fault, ...] = ()
    endings: tuple[Ending, ...] = ()
    """For each runtime but the last."""
    quick: bool = False
    """Whether handlers take little time, because it is real."""

    @classmethod
    def drawn(cls, seed: int) -> Plan:
        """Draw a plan. At most two restarts, because a third death of a process is where a call counts as poison."""
        rng = random.Random(f"plan/{seed}")
        endings = tuple(
            Ending(rng.randint(1, 70), rng.choice(("crash", "crash", "leave"))) for _ in range(rng.randint(0, 2))
        )
        return cls(seed, _drawn_knobs(rng), (*_drawn_creation_faults(rng), *seeded_faults(seed)), endings)

    def without_trouble(self) -> Plan:
        """Return the same world without faults and restarts."""
        return Plan(self.seed, self.knobs, quick=self.quick)


def _drawn_creation_faults(rng: random.Random) -> list[Fault]:
    """Draw what a creation may meet: no clear answer, whether or not there is a session then."""
    kinds: list[dict[str, Any]] = [
        {"status": 503, "apply": True},
        {"status": 500, "apply": False},
        {"reset": True, "apply": True},
        {"reset": True, "apply": False},
        {"status": 429, "headers": {"retry-after": "1"}},
    ]
    return [Fault(on="create", do=rng.choice(kinds), times=rng.randint(1, 2))] if rng.random() < 0.4 else []


def _drawn_knobs(rng: random.Random) -> dict[str, Any]:
    choices: dict[str, Sequence[Any]] = {
        "events_status": (202, 204, 200),
        "admission": ("async", "sync"),
        "admission_delay": (0.0, 0.005, 0.5),
        "registration_gap": (0.0, 0.0, 0.2, 1.5),
        "parallel_calls": ("together", "one_by_one"),
        "shrink": (True, False),
        "call_done": ("after_result", "at_call"),
        "resume": ("session", "session_and_turn"),
        "duplicate_result": ("repeat", "silent"),
        "catch_up": ("random", "none", "all"),
        "attach_idle": (True, False),
        "keepalive": (0.5, 15.0),
        "obfuscation": (True, False),
        "idempotency": ("remember", "forget"),
        "usage": ("later", "immediate", "never"),
        "list_lag": (0.0, 3.0),
        "call_ids": ("plain", "long", "unicode"),
        "arguments": ("object", "string"),
        "turn_cursor": ("opaque", "item_id"),
    }
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.4}


class Bank:
    """The world outside: what handlers did to it, as nobody's crash can undo."""

    def __init__(self, seed: int, *, quick: bool) -> None:
        self.entries: Counter[str] = Counter()
        self.refunds: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.labels: dict[str, int] = {}
        self._pauses = (0.0, 0.001, 0.02) if quick else (0.0, 0.001, 0.02, 0.3, 2.0)
        self._rng = random.Random(f"bank/{seed}")

    def pause(self) -> float:
        """Return how long something takes, in seconds."""
        return self._rng.choice(self._pauses)

    def handlers(self) -> Handlers:
        """Build tools of every kind whose end does not depend on when a process dies."""
        handlers = Handlers()

        @handlers.tool(settle=0.1)
        async def refund(context: ToolContext, order: int) -> str:
            """Refund an order."""
            key = context.idempotency_key
            self.entries[key] += 1
            await anyio.sleep(self.pause())
            self.refunds[key] += 1
            await anyio.sleep(self.pause())
            return f"refunded {order}"

        @refund.verify
        async def _(context: ToolContext, order: int) -> Happened[str] | NotHappened:
            if self.refunds[context.idempotency_key]:
                return Happened(f"refunded {order}")
            self.denied[context.idempotency_key] += 1
            return NotHappened()

        @handlers.tool(effects="idempotent")
        async def label(context: ToolContext, order: int) -> str:
            """Print a label, or the same again under the same key."""
            await anyio.sleep(self.pause())
            self.labels.setdefault(context.idempotency_key, order)
            await anyio.sleep(self.pause())
            return f"label {order}"

        @handlers.tool(effects="read")
        async def look(order: int) -> dict[str, int]:
            """Look an order up."""
            await anyio.sleep(self.pause())
            return {"order": order}

        @handlers.tool(effects="idempotent", retry=Retry(attempts=3, delay=0.1))
        async def flaky(context: ToolContext, order: int) -> str:
            """Fail at the first attempt."""
            if context.attempt == 1:
                raise ConnectionError
            return f"at last {order}"

        @handlers.tool(effects="read")
        async def refuse(order: int) -> str:
            """Refuse, in words for the model."""
            raise ToolError(f"Order {order} cannot be found.")

        return handlers


class DyingStore(MemoryStore):
    """A store that calls something at its n-th write: its own crash, which loses that very write, or another end."""

    def __init__(self) -> None:
        super().__init__()
        self._left: int | None = None
        self._end: Callable[[], None] = self.crash

    def end_at(self, number: int | None, end: Callable[[], None]) -> None:
        """Call `end` at this write, counted from now on; None never does."""
        self._left = number
        self._end = end

    def write(self, *statements: Write, lazy: bool = False) -> Receipt:
        """Queue a transaction, and end if this is the one."""
        receipt = super().write(*statements, lazy=lazy)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._left = None
                self._end()
        return receipt


class Aftermath(msgspec.Struct, frozen=True):
    """What is to be seen when all is over."""

    answers: dict[str, Any]
    """Turn, name and arguments of each call: what the server took as its result."""
    turns: list[tuple[str, str]]
    """Status and final text of each turn."""
    sent: dict[str, set[str]]
    """Turn and id of each call: the different bytes that were posted as its result."""
    stored: dict[str, CallRecord]
    sessions: list[SessionRecord]
    bank: Bank
    lives: int
    fired: int


async def simulate(plan: Plan) -> Aftermath:
    """Run a plan in memory to its end; meant for virtual time."""
    return await _Simulation(plan, DyingStore(), PATIENCE).run()


async def simulate_on_disk(plan: Plan, path: str) -> Aftermath:
    """Run a plan on a file, in real time: the runtimes leave at moments the seed chooses."""
    return await _Simulation(plan, SQLiteStore(path), 30.0).run()


class _Simulation:
    """One plan, while it runs."""

    def __init__(self, plan: Plan, store: DyingStore | SQLiteStore, patience: float) -> None:
        self._plan = plan
        self._store = store
        self._patience = patience
        self._bank = Bank(plan.seed, quick=plan.quick)
        self._rng = random.Random(f"lives/{plan.seed}")

    async def run(self) -> Aftermath:
        plan = self._plan
        lives = 1
        with anyio.fail_after(self._patience):
            async with run_harness(SCRIPT, seed=plan.seed, knobs=plan.knobs, faults=plan.faults) as harness:
                for ending in plan.endings:
                    lives += not await self._life(harness, ending)
                assert await self._life(harness, None)
                return await self._aftermath(harness, lives)

    async def _life(self, harness: Harness, ending: Ending | None) -> bool:
        """Run one runtime; return whether it did all its work before its end."""
        finished = False
        runtime = Runtime(
            harness.client,
            handlers=self._bank.handlers(),
            store=self._store,
            drain_timeout=0.0 if ending is not None else 25.0,
            rng=self._rng,
            clock=lambda: int((EPOCH + anyio.current_time()) * 1e6),
        )
        try:
            async with runtime:
                with anyio.CancelScope() as scope:
                    self._arm(ending, scope)
                    await _work(runtime)
                    finished = True
        except StoreError:
            # What a dead process leaves to its caller: nothing. The next one starts from what was committed.
            return False
        return finished

    def _arm(self, ending: Ending | None, scope: anyio.CancelScope) -> None:
        if isinstance(self._store, DyingStore):
            end = self._store.crash if ending is not None and ending.kind == "crash" else scope.cancel
            self._store.end_at(ending.write if ending is not None else None, end)
        elif ending is not None:
            scope.deadline = anyio.current_time() + self._rng.uniform(0.05, 0.5)

    async def _aftermath(self, harness: Harness, lives: int) -> Aftermath:
        sent: dict[str, set[str]] = {}
        for entry in harness.log:
            if entry.kind == "tool_result":
                sent.setdefault(f"{entry.turn_id}/{entry.call_id}", set()).add(entry.body)
        (session,) = harness.control.state()["sessions"]
        numbers = {turn["id"]: turn["number"] for turn in session["turns"]}
        answers = {
            f"{numbers[one['turn_id']]} {one['name']} {one['arguments']}": one["result"] for one in session["calls"]
        }
        async with self._store as store:
            stored = {f"{one.key.turn_id}/{one.key.call_id}": one for one in await store.calls(limit=1000)}
            sessions = await store.sessions()
        return Aftermath(
            answers=answers,
            turns=[(turn["status"], _final_text(session["items"], turn["id"])) for turn in session["turns"]],
            sent=sent,
            stored=stored,
            sessions=sessions,
            bank=self._bank,
            lives=lives,
            fired=len(harness.faults.fired),
        )


async def _work(runtime: Runtime) -> None:
    """Do what an application does, from the beginning in every life: keys keep it from being done twice."""
    session = await runtime.open("job", agent={"model": "scripted"}, input="first")
    await session.wait()
    await session.run("second", key="second")


def _final_text(items: Sequence[dict[str, Any]], turn_id: str) -> str:
    said = [
        part["text"]
        for item in items
        if item["turn_id"] == turn_id and item["type"] == "message" and item.get("phase") == "final_answer"
        for part in item["content"]
    ]
    return "".join(said)
