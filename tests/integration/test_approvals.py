"""Calls that need a person's yes: nothing runs before it, it survives a kill, it is given once (case A26)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from answerback import CallState, DecisionError, Handlers, SQLiteStore, ToolContext, UnknownCallError
from integration.approval_worker import build
from integration.rig import answering, running, until_row, until_state
from wire_player import PlayedSession, call, play

WORKER = Path(__file__).with_name("approval_worker.py")
LIVES = 30.0


@pytest.fixture
def session() -> PlayedSession:
    first = call("c_a", "pay_out", {"invoice": "I-7", "cents": 900})
    second = call("c_b", "pay_out", {"invoice": "I-8", "cents": 50})
    return PlayedSession(pending=[first, second])


def paid(effects: Path) -> list[str]:
    return effects.read_text().splitlines() if effects.exists() else []


async def test_a_yes_and_a_no_survive_sigkill_and_further_restarts(
    session: PlayedSession, tmp_path: Path, anyio_backend_name: str
) -> None:
    effects, path = tmp_path / "effects", tmp_path / "calls.db"
    with anyio.fail_after(LIVES):
        async with play(session) as player:
            options = {
                "base_url": player.base_url,
                "store": str(path),
                "effects": str(effects),
                "backend": anyio_backend_name,
            }
            async with await anyio.open_process(
                [sys.executable, "-W", "ignore", str(WORKER), json.dumps(options)]
            ) as worker:
                assert worker.stdout is not None
                assert b"waiting" in await worker.stdout.receive()
                worker.kill()
            assert (paid(effects), player.results()) == ([], [])

            async with running(player, build(str(effects)), store=SQLiteStore(path)) as stage:
                ref = await stage.runtime.attach("sess_1")
                first, second = await ref.pending_approvals()
                assert json.loads(first.arguments) == {"invoice": "I-7", "cents": 900}
                assert json.loads(second.arguments) == {"invoice": "I-8", "cents": 50}
                await ref.approve(first.public_id[:10], by="kim")
                await ref.reject("c_b", reason="not now")
                answers = await stage.answered("c_a", "c_b")
                await ref.wait()
            assert (answers["c_a"].success, answers["c_a"].output) == (True, "paid I-7")
            assert answers["c_b"].success is False
            assert "not now" in (answers["c_b"].error or "")
            assert paid(effects) == ["I-7 900"]

            async with running(player, build(str(effects)), store=SQLiteStore(path)) as stage:
                await (await stage.runtime.attach("sess_1")).wait()
                approval = await stage.store.approval(first.key)
            assert approval is not None
            assert (approval.verdict, approval.decided_by) == ("approved", "kim")
            assert approval.used_at is not None
            assert paid(effects) == ["I-7 900"]
            assert len(player.results()) == 2


async def test_a_second_decision_and_a_foreign_id_are_errors_and_change_nothing(
    session: PlayedSession, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    async with answering(session, build(str(effects))) as stage:
        ref = stage.ref
        waiting = await until_state(stage, "c_a", CallState.WAITING_APPROVAL)
        await until_state(stage, "c_b", CallState.WAITING_APPROVAL)
        with pytest.raises(UnknownCallError):
            await ref.approve("0123456789abcdef")
        await ref.reject(waiting.public_id)
        with pytest.raises(DecisionError):
            await ref.approve(waiting.public_id)
        with pytest.raises(DecisionError):
            await ref.reject(waiting.public_id)
        await stage.answered("c_a")
        assert paid(effects) == []


async def test_two_that_decide_at_once_start_one_run(session: PlayedSession, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    errors: list[Exception] = []
    async with answering(session, build(str(effects))) as stage:
        ref = stage.ref
        await until_state(stage, "c_a", CallState.WAITING_APPROVAL)

        async def say_yes() -> None:
            try:
                await ref.approve("c_a")
            except DecisionError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(say_yes)
            group.start_soon(say_yes)
        await stage.answered("c_a")
        assert len(errors) == 1
        assert paid(effects) == ["I-7 900"]


async def test_a_call_whose_turn_ends_while_it_waits_is_closed_and_cannot_be_approved(
    session: PlayedSession, tmp_path: Path
) -> None:
    async with answering(session, build(str(tmp_path / "effects"))) as stage:
        waiting = await until_state(stage, "c_a", CallState.WAITING_APPROVAL)
        session.forget("c_a")
        stage.runtime.wake("sess_1")
        await until_row(stage, "c_a", lambda row: row.state is CallState.OBSOLETE)
        with pytest.raises(DecisionError):
            await stage.runtime.approve(waiting.public_id)


async def test_a_policy_function_sees_the_checked_arguments_and_fails_closed() -> None:
    seen: list[Mapping[str, Any]] = []
    runs: list[int] = []
    handlers = Handlers()

    async def over_a_hundred(context: ToolContext[Any], arguments: Mapping[str, Any]) -> bool:
        seen.append(arguments)
        if arguments["cents"] == 13:
            raise ValueError("unlucky")
        return context.name == "refund" and arguments["cents"] > 100

    @handlers.tool(needs_approval=over_a_hundred)
    def refund(cents: int) -> int:
        """Refund."""
        runs.append(cents)
        return cents

    calls = [call(f"c_{cents}", "refund", {"cents": cents}) for cents in ("50", 500, 13)]
    async with answering(PlayedSession(pending=calls), handlers) as stage:
        answers = await stage.answered("c_50")
        await until_state(stage, "c_500", CallState.WAITING_APPROVAL)
        await until_state(stage, "c_13", CallState.WAITING_APPROVAL)
    assert answers["c_50"].success is True
    assert runs == [50]
    assert {"cents": 50} in seen


async def test_arguments_that_do_not_fit_are_refused_without_asking_anybody() -> None:
    handlers = Handlers()

    @handlers.tool(needs_approval=True)
    def refund(cents: int) -> int:
        """Refund."""
        return cents

    calls = [call("c_bad", "refund", {"cents": "many"})]
    async with answering(PlayedSession(pending=calls), handlers) as stage:
        answers = await stage.answered("c_bad")
        assert await stage.ref.pending_approvals() == []
    assert answers["c_bad"].success is False
