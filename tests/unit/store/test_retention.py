"""What a store gives up, when, and that the file shrinks by it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback.errors import ConfigurationError, StoreClosedError, StoreError
from answerback.model import CallKey, CallState, InputRecord, SessionRecord
from answerback.store.base import PutCheckpoint, PutInput, PutSession, PutSubstitute, UpdateCall, UpdateInput
from answerback.store.conformance.builders import finished, moved, observed, started
from answerback.store.retention import CALLS_AT_ONCE, DAY, Pruned, delete_rows, forget_payloads
from answerback.store.sqlite import SQLiteStore

SECOND = 1_000_000
NOW = 400 * int(DAY) * SECOND
CANARY = b"canary-" + b"7" * 3_000


def ago(days: float) -> int:
    """Return the moment so many days before NOW."""
    return NOW - int(days * DAY) * SECOND


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def session(name: str, *, days: float, **fields: Any) -> PutSession:
    """Return a session that was last touched so long ago."""
    given = {"local_id": f"l-{name}", "session_id": name, "request": CANARY, "updated_at": ago(days)}
    record: dict[str, Any] = {**given, **fields}
    return PutSession(SessionRecord(**record))


def answered(name: str, number: int = 1, *, days: float) -> list[Any]:
    """Return the whole life of a call that was answered so long ago."""
    key, at = CallKey(name, "turn_1", f"c{number}"), ago(days)
    return [
        observed(key, arguments=CANARY),
        started(key),
        finished(key, outcome=CANARY),
        UpdateCall(key=key, sources=(CallState.FINISHED,), target=CallState.SUBMITTED, at=at),
        UpdateCall(key=key, sources=(CallState.SUBMITTED,), target=CallState.ACKED, at=at, changes={"closed_at": at}),
    ]


def said(name: str, *, days: float, state: str = "done") -> list[Any]:
    """Return an input of a session."""
    record = InputRecord(session_id=name, key="k", element=CANARY, updated_at=ago(days))
    return [PutInput(record), UpdateInput(session_id=name, key="k", changes={"state": state})]


def files(path: Path) -> bytes:
    """Return everything the store has on disk."""
    return b"".join(one.read_bytes() for one in sorted(path.parent.glob("calls.db*")))


async def test_a_session_at_rest_loses_its_payloads_first_and_its_rows_later(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(session("s", days=40), *answered("s", days=40), *said("s", days=40)).committed()
        taken = await store.prune(now=NOW)
        assert (taken.payloads, taken.inputs, taken.calls, taken.sessions) == (1, 1, 0, 0)
        (call,) = await store.calls()
        assert (call.state, call.outcome_kind, call.arguments, call.outcome) == (CallState.ACKED, "ok", b"", None)
        assert call.outcome_hash is not None
        assert len(await store.transitions(call.key)) == 5
        assert CANARY not in files(path)
        assert (await store.prune(now=NOW)).payloads == 0
        gone = await store.prune(now=NOW + int(180 * DAY) * SECOND)
        assert (gone.calls, gone.sessions) == (1, 1)
        assert await store.calls() == []
        assert await store.sessions() == []


async def test_a_short_payload_in_a_page_that_stays_is_overwritten(path: Path) -> None:
    short = b"canary-short"
    key = CallKey("s", "turn_1", "c1")
    async with SQLiteStore(path) as store:
        acked = moved(CallState.ACKED, source=CallState.FINISHED, key=key)
        life: list[Any] = [observed(key, arguments=short), started(key), finished(key, outcome=short), acked]
        await store.write(session("s", days=400, request=None), *life).committed()
        await store.write(observed(CallKey("t", "t", "stays"))).committed()
        await store.prune(now=NOW, rows_after=1_000 * DAY)
        assert short not in files(path)


@pytest.mark.parametrize("step", [forget_payloads, delete_rows])
async def test_a_session_that_wakes_up_after_it_was_listed_is_left_alone(path: Path, step: Any) -> None:
    async with SQLiteStore(path) as store:
        await store.write(session("s", days=400), *answered("s", days=400)).committed()
        await store.write(observed(CallKey("s", "turn_2", "new"), observed_at=NOW)).committed()
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        assert step(raw, ["s"], before=ago(30)) == Pruned()


async def test_everything_a_call_left_goes_with_its_payload(path: Path) -> None:
    key = CallKey("s", "turn_1", "c1")
    async with SQLiteStore(path) as store:
        await store.write(session("s", days=40), *answered("s", days=40)).committed()
        await store.write(
            PutSubstitute(key=key, element=CANARY, reason="r", at=1),
            PutCheckpoint(key=key, attempt=1, name="n", value=CANARY, at=1),
        ).committed()
        await store.prune(now=NOW)
        assert (await store.calls())[0].substitute is None
        assert await store.checkpoints(key) == {}
    assert CANARY not in files(path)


@pytest.mark.parametrize(
    "alive",
    [
        [session("s", days=5)],
        [session("s", days=400, active=True)],
        [session("s", days=400), observed(CallKey("s", "t2", "c9"), observed_at=ago(400), arguments=CANARY)],
        [session("s", days=400), *answered("s", 2, days=5)],
        [session("s", days=400), *said("s", days=400, state="queued")],
        [session("s", days=400), *said("s", days=5)],
        [PutSession(SessionRecord(local_id="l-intent", request=CANARY, updated_at=ago(400)))],
    ],
    ids=["touched", "turn open", "call open", "call lately", "input open", "input lately", "creation unconfirmed"],
)
async def test_what_is_not_at_rest_is_left_alone(path: Path, alive: list[Any]) -> None:
    async with SQLiteStore(path) as store:
        await store.write(*alive, *answered("s", days=400)).committed()
        before = await store.calls(), await store.sessions()
        taken = await store.prune(now=NOW)
        assert (taken.payloads, taken.inputs, taken.calls, taken.sessions) == (0, 0, 0, 0)
        assert (await store.calls(), await store.sessions()) == before


async def test_a_session_with_a_key_keeps_its_row_so_that_opening_it_again_finds_it(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(session("s", days=400, key="ticket"), *answered("s", days=400)).committed()
        await store.write(session("t", days=400, key="other", state="gone")).committed()
        taken = await store.prune(now=NOW)
        assert (taken.calls, taken.sessions) == (1, 1)
        (kept,) = await store.sessions()
        assert (kept.key, kept.session_id, kept.request) == ("ticket", "s", None)


async def test_the_file_shrinks_and_says_by_how_much(path: Path) -> None:
    count = CALLS_AT_ONCE + 20
    async with SQLiteStore(path) as store:
        store.write(session("s", days=400))
        for number in range(count):
            store.write(*answered("s", number, days=400))
        await store.flush()
        await store.prune(now=ago(390))
        full = path.stat().st_size
        taken = await store.prune(now=NOW, rows_after=1_000 * DAY)
        assert taken.payloads == count
        assert taken.freed_bytes > count * len(CANARY)
        assert path.stat().st_size == full - taken.freed_bytes
        assert path.with_name("calls.db-wal").stat().st_size == 0
        assert (await store.prune(now=NOW)).calls == count


async def test_calls_go_on_while_a_store_is_pruned(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(session("s", days=400), *answered("s", days=400)).committed()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: store.prune(now=NOW))
                for number in range(50):
                    await store.write(observed(CallKey("new", "t", str(number)))).committed()
        assert len(await store.calls()) == 50


async def test_times_that_contradict_each_other_are_refused(path: Path) -> None:
    async with SQLiteStore(path) as store:
        for payloads_after, rows_after in ((-1.0, 1.0), (2.0, 1.0)):
            with pytest.raises(ConfigurationError):
                await store.prune(payloads_after=payloads_after, rows_after=rows_after)
    with pytest.raises(StoreClosedError):
        await store.prune()


async def test_an_open_calls_outcome_cannot_be_forgotten(path: Path) -> None:
    async with SQLiteStore(path) as store:
        await store.write(observed(), started(), finished()).committed()
    with closing(sqlite3.connect(path)) as raw, pytest.raises(sqlite3.IntegrityError, match="never changed"):
        raw.execute("UPDATE calls SET outcome = NULL")


async def test_payloads_kept_until_acked_are_nowhere_on_disk_afterwards(path: Path) -> None:
    key = CallKey("s", "turn_1", "c1")
    life = answered("s", days=1)
    async with SQLiteStore(path, retain_payloads="until_acked") as store:
        await store.write(session("s", days=1, request=None), *life[:4]).committed()
        await store.write(PutCheckpoint(key=key, attempt=1, name="n", value=CANARY, at=1)).committed()
        assert CANARY in files(path)
        assert (await store.calls())[0].outcome == CANARY
        await store.write(life[4]).committed()
        assert CANARY not in files(path)
        (call,) = await store.calls()
        assert (call.state, call.outcome_kind, call.outcome, call.arguments) == (CallState.ACKED, "ok", None, b"")
        assert [step.target for step in await store.transitions(key)][-1] == "acked"
    assert CANARY not in files(path)


async def test_what_a_reader_holds_back_in_the_log_is_gone_after_the_next_commit(path: Path) -> None:
    life = answered("s", days=1)
    async with SQLiteStore(path, retain_payloads="until_acked") as store:
        await store.write(*life[:4]).committed()
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM calls").fetchall()
            await store.write(life[4]).committed()
            assert CANARY in files(path)
            reader.execute("COMMIT")
        await store.write(observed(CallKey("s", "t", "next"))).committed()
        assert CANARY not in files(path)


async def test_what_the_server_does_not_have_yet_is_kept(path: Path) -> None:
    life = answered("s", days=1)
    dropped = moved(CallState.OBSOLETE, source=CallState.SUBMITTED, key=CallKey("s", "turn_1", "c1"))
    async with SQLiteStore(path, retain_payloads="until_acked") as store:
        await store.write(*life[:4], dropped).committed()
        assert (await store.calls())[0].outcome == CANARY


def test_an_unknown_way_to_retain_payloads_is_refused(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="until_acked"):
        SQLiteStore(path, retain_payloads="never")  # type: ignore[arg-type]  # what a caller without a checker does


async def test_a_store_that_closes_while_it_is_pruned_says_so_or_finishes(path: Path) -> None:
    store = SQLiteStore(path)
    ended: list[str] = []
    async with store:
        await store.write(session("s", days=400), *answered("s", days=400)).committed()

        async def prune() -> None:
            try:
                await store.prune(now=NOW)
            except StoreError as error:
                ended.append(type(error).__name__)
            else:
                ended.append("done")

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(prune)
                await anyio.lowlevel.checkpoint()
                await store.aclose()
    assert ended in (["StoreClosedError"], ["done"])
