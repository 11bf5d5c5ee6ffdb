"""Secret values on the whole runtime: in no file and no log, and there when they are needed, also after a restart."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback import (
    CallState,
    Handlers,
    Happened,
    NotHappened,
    Secret,
    SQLiteStore,
    ToolContext,
    Unknown,
)
from answerback.daemon.cli import main
from answerback.handlers.secrets import MASK, Keyring
from integration.rig import live_of, rows, running, until, until_row, until_state
from wire_player import Fault, PlayedSession, call, play

CANARY = "canary-4111-1111"
TOKEN = "canary-token-77"
KEY, OTHER = "k" * 40, "o" * 40
PATIENCE = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Take down everything any logger says."""
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.fixture
def session() -> PlayedSession:
    return PlayedSession(pending=[call("c_pay", "pay", {"card": CANARY, "cents": 900})])


class Bank:
    """What the handlers did."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.asked: list[str] = []
        self.entered = anyio.Event()


def build(bank: Bank, *, key: str | list[str] | None = KEY, hang: bool = False, approval: bool = False) -> Handlers:
    """Declare a tool with a secret argument and a secret result."""
    handlers = Handlers(secret_key=key)

    @handlers.tool(settle=0.0, needs_approval=approval)
    async def pay(card: Secret[str], cents: int) -> Secret[dict[str, str]]:
        """Pay."""
        bank.charged.append(card)
        bank.entered.set()
        if hang:
            await anyio.sleep_forever()
        return {"receipt": f"{TOKEN}-{cents}"}

    @pay.verify
    def _(card: str, cents: int) -> Happened[dict[str, str]] | NotHappened | Unknown:
        bank.asked.append(card)
        return Happened({"receipt": f"{TOKEN}-verified"})

    @handlers.tool
    def look(name: str) -> str:
        """Look."""
        return name

    return handlers


def files(path: Path) -> bytes:
    """Return everything that is on disk beside the store."""
    found = sorted(one for one in path.parent.iterdir() if one.is_file())
    assert path in found
    return b"".join(one.read_bytes() for one in found)


def clean(path: Path, said: pytest.LogCaptureFixture) -> bool:
    """Whether no secret is in a file or a log."""
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in said.records)
    on_disk = files(path)
    return not any(one in logged or one.encode() in on_disk for one in (CANARY, TOKEN))


async def test_a_secret_reaches_the_handler_and_the_server_and_nothing_else(
    session: PlayedSession, path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    store = SQLiteStore(path)
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(bank), store=store) as stage:
            await stage.runtime.attach("sess_1")
            (result,) = (await stage.answered("c_pay")).values()
            await store.flush()
            assert clean(path, said)
    assert bank.charged == [CANARY]
    assert json.loads(result.output) == {"receipt": f"{TOKEN}-900"}
    assert clean(path, said)
    row = (await rows(store))["c_pay"]
    assert json.loads(row.arguments) == {"card": MASK, "cents": 900}
    assert row.outcome is not None
    assert Keyring([KEY]).unseal(row.outcome) == result.raw
    assert CANARY not in repr(row)
    assert TOKEN not in repr(row)


async def test_exceptions_rejections_and_late_returns_leave_no_secret_behind(
    path: Path, said: pytest.LogCaptureFixture
) -> None:
    handlers = Handlers(secret_key=KEY)
    late = threading.Event()

    @handlers.tool
    def fail(card: Secret[str]) -> str:
        """Fail."""
        raise RuntimeError(f"no money on {card}")

    @handlers.tool
    def check(card: Secret[int]) -> str:
        """Never run: the argument is no number."""
        raise AssertionError

    @handlers.tool(timeout=0.05)
    def slow(card: Secret[str]) -> Secret[str]:
        """Answer too late."""
        late.wait(PATIENCE)
        return TOKEN

    session = PlayedSession(
        pending=[
            call("c_check", "check", {"card": CANARY, "crad": CANARY}),
            call("c_fail", "fail", {"card": CANARY}),
            call("c_slow", "slow", {"card": CANARY}),
        ]
    )
    store = SQLiteStore(path)
    with anyio.fail_after(PATIENCE):
        async with (
            play(session) as player,
            running(player, handlers, store=store, cancel_grace=0.05, drain_timeout=5.0) as stage,
        ):
            await stage.runtime.attach("sess_1")
            accepted = await stage.answered("c_fail", "c_check", "c_slow")
            late.set()
            key = (await until_row(stage, "c_slow", lambda row: row.outcome is not None)).key

            async def came() -> bool:
                await store.flush()
                return bool(await store.late(key))

            while not await came():
                await anyio.lowlevel.checkpoint()
            assert clean(path, said)
    assert not any(CANARY in (result.error or "") for result in accepted.values())
    assert clean(path, said)


async def test_an_approved_call_runs_with_the_live_value_after_a_restart_and_a_person_saw_the_mask(
    session: PlayedSession, path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, build(bank, approval=True), store=SQLiteStore(path)) as stage:
                await stage.runtime.attach("sess_1")
                await until_state(stage, "c_pay", CallState.WAITING_APPROVAL)
            async with running(player, build(bank, approval=True), store=SQLiteStore(path)) as stage:
                ref = await stage.runtime.attach("sess_1")
                (waiting,) = await ref.pending_approvals()
                assert json.loads(waiting.arguments) == {"card": MASK, "cents": 900}
                await ref.approve("c_pay", by="kim")
                await stage.answered("c_pay")
    assert bank.charged == [CANARY]
    assert clean(path, said)


async def test_a_verify_hook_is_asked_with_the_live_value_after_a_restart(
    session: PlayedSession, path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            store = SQLiteStore(path)
            async with running(
                player, build(bank, hang=True), store=store, drain_timeout=0.0, cancel_grace=0.05
            ) as stage:
                await stage.runtime.attach("sess_1")
                await bank.entered.wait()
            assert (await rows(store))["c_pay"].state is CallState.INDETERMINATE
            async with running(player, build(bank), store=SQLiteStore(path)) as stage:
                (result,) = (await stage.answered("c_pay")).values()
    assert (bank.charged, bank.asked) == ([CANARY], [CANARY])
    assert json.loads(result.output) == {"receipt": f"{TOKEN}-verified"}
    assert clean(path, said)


async def test_a_stored_result_is_sent_after_a_restart_as_the_very_bytes_and_only_with_its_key(
    path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    session = PlayedSession(
        pending=[call("c_pay", "pay", {"card": CANARY, "cents": 900})], faults={"c_pay": [Fault(status=503)] * 50}
    )
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, build(bank), store=SQLiteStore(path), submit_grace=0.0) as stage:
                await stage.runtime.attach("sess_1")
                (first, *_) = await stage.posted("c_pay", 1)
            session.faults.clear()
            before = len(player.results())

            # With another key: the call is left as it is, and its sibling is answered.
            session.require(call("c_look", "look", {"name": "x"}))
            store = SQLiteStore(path)
            async with running(player, build(bank, key=OTHER), store=store, submit_grace=0.0) as stage:
                await stage.answered("c_look")
                await until(live_of(stage.runtime), lambda: _reported(said))
            assert [one.call_id for one in player.results()[before:]] == ["c_look"]
            assert (await rows(store))["c_pay"].state in {CallState.FINISHED, CallState.SUBMITTED}

            async with running(player, build(bank, key=[OTHER, KEY]), store=SQLiteStore(path)) as stage:
                (second,) = (await stage.answered("c_pay"),)
    assert second["c_pay"].raw == first.raw
    assert bank.charged == [CANARY]
    assert clean(path, said)


def _reported(said: pytest.LogCaptureFixture) -> bool:
    return any("another key" in record.getMessage() for record in said.records)


async def test_a_call_hashed_with_another_key_is_left_alone_and_runs_once_the_key_is_there(
    session: PlayedSession, path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, build(bank, approval=True), store=SQLiteStore(path)) as stage:
                await stage.runtime.attach("sess_1")
                await until_state(stage, "c_pay", CallState.WAITING_APPROVAL)
                await stage.runtime.approve("c_pay")
                await stage.answered("c_pay")
            session.require_again(call("c_pay", "pay", {"card": CANARY, "cents": 900}))
            async with running(player, build(bank, key=OTHER), store=SQLiteStore(path)) as stage:
                await stage.runtime.attach("sess_1")
                await until(live_of(stage.runtime), lambda: _reported(said))
                (status,) = stage.runtime.status().sessions
                assert status.state == "open"
    assert len(player.results("c_pay")) == 1
    assert bank.charged == [CANARY]


async def test_other_arguments_under_the_same_call_id_are_noticed_behind_the_mask(
    session: PlayedSession, path: Path
) -> None:
    bank = Bank()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, build(bank, approval=True), store=SQLiteStore(path)) as stage:
                await stage.runtime.attach("sess_1")
                await until_state(stage, "c_pay", CallState.WAITING_APPROVAL)
            session.pending[:] = [call("c_pay", "pay", {"card": "another", "cents": 900})]
            async with running(player, build(bank, approval=True), store=SQLiteStore(path)) as stage:
                live = live_of(stage.runtime)
                await until(live, lambda: live.record.state == "quarantined")
    assert bank.charged == []


async def test_a_tool_that_becomes_secret_later_still_knows_its_open_calls(path: Path) -> None:
    ran: list[str] = []

    def declared(*, secret: bool) -> Handlers:
        handlers = Handlers(secret_key=KEY)

        def hidden(card: Secret[str]) -> str:
            """Pay."""
            ran.append(card)
            return "paid"

        def open_(card: str) -> str:
            """Pay."""
            ran.append(card)
            return "paid"

        if secret:
            handlers.tool(hidden, name="pay", needs_approval=True)
        else:
            handlers.tool(open_, name="pay", needs_approval=True)
        return handlers

    for before, after in ((False, True), (True, False)):
        here = path.with_name(f"{before}.db")
        session = PlayedSession(pending=[call("c_pay", "pay", {"card": CANARY})])
        with anyio.fail_after(PATIENCE):
            async with play(session) as player:
                async with running(player, declared(secret=before), store=SQLiteStore(here)) as stage:
                    await stage.runtime.attach("sess_1")
                    await until_state(stage, "c_pay", CallState.WAITING_APPROVAL)
                async with running(player, declared(secret=after), store=SQLiteStore(here)) as stage:
                    await stage.runtime.approve("c_pay")
                    await stage.answered("c_pay")
    assert ran == [CANARY, CANARY]


async def test_a_decided_result_of_a_secret_tool_is_encrypted_too(
    session: PlayedSession, path: Path, said: pytest.LogCaptureFixture
) -> None:
    bank = Bank()
    handlers = Handlers(secret_key=KEY)

    @handlers.tool(on_interrupted="hold")
    async def pay(context: ToolContext, card: Secret[str], cents: int) -> Secret[str]:
        """Pay."""
        bank.entered.set()
        await anyio.sleep_forever()
        return ""

    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(
                player, handlers, store=SQLiteStore(path), drain_timeout=0.0, cancel_grace=0.05
            ) as stage:
                await stage.runtime.attach("sess_1")
                await bank.entered.wait()
            async with running(player, handlers, store=SQLiteStore(path)) as stage:
                await until_row(stage, "c_pay", lambda row: row.hold_until is not None)
                await stage.runtime.decide("c_pay", Happened(TOKEN))
                (result,) = (await stage.answered("c_pay")).values()
    assert result.output == TOKEN
    assert clean(path, said)


async def test_the_command_line_shows_the_mask_even_when_asked_for_values(
    session: PlayedSession, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, build(Bank()), store=SQLiteStore(path)) as stage:
            await stage.runtime.attach("sess_1")
            await stage.answered("c_pay")
    shown = ""
    commands: list[list[str]] = [
        ["show", "c_pay", "--values"],
        ["show", "c_pay", "--values", "--json"],
        ["show", "sess_1", "--values"],
        ["calls", "--json"],
        ["store", "info", "--json"],
    ]
    for command in commands:
        shown += await anyio.to_thread.run_sync(_printed, [*command, "--db", str(path)], capsys)
    assert MASK in shown
    assert CANARY not in shown
    assert TOKEN not in shown


def _printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    captured: Any = capsys.readouterr()
    return str(captured.out + captured.err)
