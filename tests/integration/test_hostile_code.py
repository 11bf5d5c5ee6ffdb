"""Code of the application that misbehaves around a call: hooks, predicates, cancels, callers that give up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import pytest

from answerback import CallState, Failed, Handlers, Happened, MemoryStore, Runtime, ToolContext, Unknown
from answerback.handlers import tool as tool_module
from answerback.testing import Script, rule, run_harness, say
from integration.rig import PATIENCE, answering, until_state
from wire_player import PlayedSession, call


class Unreadable(Mapping[str, str]):
    """A mapping that cannot be read."""

    def __getitem__(self, name: str) -> str:
        raise LookupError(name)

    def __iter__(self) -> Iterator[str]:
        raise LookupError("no")

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "Unreadable"


@pytest.mark.parametrize("verdict", [Failed("half \ud800"), Failed(123), Happened(Unreadable())], ids=repr)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - what an unchecked hook may say
async def test_a_verdict_that_cannot_be_sent_is_answered_once_and_asked_once(verdict: Failed | Happened[Any]) -> None:
    asked: list[int] = []
    handlers = Handlers()

    @handlers.tool(timeout=0.05, settle=0)
    async def ship(parcel: str) -> Mapping[str, str]:
        await anyio.sleep_forever()
        return {"never": parcel}

    @ship.verify
    async def _(parcel: str) -> Failed | Happened[Mapping[str, str]]:
        asked.append(len(parcel))
        return verdict

    session = PlayedSession(pending=[call("c_a", "ship", {"parcel": "P"})])
    async with answering(session, handlers, cancel_grace=0.05) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
    assert answer.success is False
    assert asked == [1]


async def test_predicates_that_hang_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_module, "PREDICATE_TIMEOUT", 0.05)
    handlers = Handlers()

    async def ask(context: ToolContext[Any], arguments: Mapping[str, Any]) -> bool:
        await anyio.sleep_forever()
        return bool(context and arguments)

    async def enabled() -> bool:
        await anyio.sleep_forever()
        return True

    @handlers.tool(needs_approval=ask)
    def pay(cents: int) -> int:
        """Pay."""
        return cents

    @handlers.tool(is_enabled=enabled)
    def look(cents: int) -> int:
        """Look."""
        return cents

    pending = [call("c_pay", "pay", {"cents": 1}), call("c_look", "look", {"cents": 1})]
    async with answering(PlayedSession(pending=pending), handlers) as stage:
        assert (await stage.answered("c_look"))["c_look"].success is False
        await until_state(stage, "c_pay", CallState.WAITING_APPROVAL)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("effects", ["read", "once"])
async def test_a_body_that_cancels_itself_has_failed_and_is_not_run_again(effects: Any) -> None:
    runs: list[int] = []
    handlers = Handlers()

    @handlers.tool(effects=effects)
    async def leave() -> str:
        runs.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(0)
        return "never"

    async with answering(PlayedSession(pending=[call("c_a", "leave", {})]), handlers) as stage:
        assert (await stage.answered("c_a"))["c_a"].success is False
        report = await stage.runtime.drain(0)
    assert runs == [1]
    assert report.clean


async def test_the_hold_deadline_bounds_a_longer_settle() -> None:
    handlers = Handlers()

    @handlers.tool(timeout=0.05, settle=3600)
    async def ship(parcel: str) -> str:
        await anyio.sleep_forever()
        return parcel

    @ship.verify
    async def _(parcel: str) -> Unknown:
        raise AssertionError(parcel)

    session = PlayedSession(pending=[call("c_a", "ship", {"parcel": "P"})])
    async with answering(session, handlers, cancel_grace=0.05, hold_deadline=0.2) as stage:
        answer = (await stage.answered("c_a"))["c_a"]
    assert answer.success is False
    assert "unknown" in (answer.error or "")


async def test_a_cancelled_send_is_sent_all_the_same_and_its_key_is_used_up() -> None:
    script = Script(rule(say("You said: {{ input }}")))
    with anyio.fail_after(PATIENCE):
        async with (
            run_harness(script, knobs={"admission": "sync"}) as harness,
            Runtime(harness.client, handlers=Handlers(), store=MemoryStore()) as runtime,
        ):
            session = await runtime.open("k", agent={"model": "any"}, input="first")
            await session.wait()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await session.send("second", key="request-1")
            await session.send("second", key="request-1")
            turn = await session.wait()
            assert turn.output_text == "You said: second"
            assert [entry.kind for entry in harness.log].count("message") == 1
