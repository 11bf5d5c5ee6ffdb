"""S41: an exception anywhere in an actor restarts it, and nothing else notices: not its handlers, not its siblings."""

from __future__ import annotations

import typing
from typing import Any

import anyio
import msgspec
import pytest

from answerback import CallState, Handlers, SessionQuarantinedError
from answerback.actors import messages, reconcile
from answerback.actors.api import AgentsApi
from answerback.actors.session import SessionActor
from answerback.actors.session_state import SessionState
from answerback.model import CallKey
from answerback.store.memory import MemoryStore
from answerback.wire.events import Event
from answerback.wire.records import Session
from integration.planted import Planted, PlantedError, working
from integration.rig import PATIENCE, live_of, rows, running, until_taken
from wire_player import Close, Fault, PlayedSession, Reset, Snapshot, call, play


def sample_message(kind: type[messages.Message]) -> messages.Message:
    """Return some message of a kind; the exception comes before it is looked at."""
    samples: list[messages.Message] = [
        messages.EventArrived(Event(type="agent.session.turn.note")),
        messages.StreamOpened(),
        messages.StreamSilent(),
        messages.StreamEnded(),
        messages.Fetched(Session(id="sess_1"), 1),
        messages.FetchRefused(404),
        messages.CallFinished(KEY),
        messages.ReadAgain("test"),
        messages.OutboxChanged(),
    ]
    return next(sample for sample in samples if type(sample) is kind)


KEY = CallKey("sess_1", "turn_1", "c_one")
ASKED = messages.Asked("hold", b"{}", "hash")
MESSAGES: tuple[type[Any], ...] = typing.get_args(messages.Message)
EFFECTS: tuple[type[Any], ...] = typing.get_args(messages.Effect)
DECISIONS: tuple[type[Any], ...] = typing.get_args(reconcile.Decision)


def sample(kind: type[Any]) -> Any:
    """Return some effect or decision of a kind, built from what its fields are called."""
    values: dict[str, Any] = {
        "reason": "test",
        "reading": messages.Reading({}),
        "key": KEY,
        "asked": ASKED,
        "event": Event(type="agent.session.turn.note"),
        "state": "failed",
        "kind": "some_action",
        "crashed": False,
        "again": False,
        "target": CallState.OBSOLETE,
        "at": None,
    }
    return kind(**{field.name: values[field.name] for field in msgspec.structs.fields(kind) if field.required})


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
async def test_an_exception_at_a_message_restarts_the_actor_and_nothing_else(
    kind: type[messages.Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(lambda subject: type(subject) is kind)
    apply = SessionState.apply

    def exploding(state: SessionState, message: messages.Message) -> list[messages.Effect]:
        if state.session_id == "sess_1":
            planted.check(message)
        return apply(state, message)

    monkeypatch.setattr(SessionState, "apply", exploding)
    async with working() as work:
        planted.armed = True
        work.live.mailbox.tell(sample_message(kind))
        await work.crashed()
        await work.finished(planted)


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
async def test_an_exception_while_an_effect_is_performed_restarts_the_actor_and_nothing_else(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    effect = sample(kind)
    planted = Planted(lambda subject: subject is effect)
    apply, perform = SessionState.apply, SessionActor._perform

    def asking(state: SessionState, message: messages.Message) -> list[messages.Effect]:
        return [effect] if message == messages.ReadAgain("planted") else apply(state, message)

    async def exploding(actor: SessionActor, subject: messages.Effect) -> None:
        planted.check(subject)
        await perform(actor, subject)

    monkeypatch.setattr(SessionState, "apply", asking)
    monkeypatch.setattr(SessionActor, "_perform", exploding)
    async with working() as work:
        planted.armed = True
        work.live.mailbox.tell(messages.ReadAgain("planted"))
        await work.crashed()
        await work.finished(planted)


@pytest.mark.parametrize("kind", DECISIONS, ids=lambda kind: kind.__name__)
async def test_an_exception_while_a_decision_is_carried_out_restarts_the_actor_and_nothing_else(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = sample(kind)
    planted = Planted(lambda subject: subject is decision)
    decide, carry_out = reconcile.reconcile, SessionActor._decide

    def deciding(reading: messages.Reading, *rest: Any) -> list[reconcile.Decision]:
        return [decision] if planted.armed and KEY in reading.asked else decide(reading, *rest)

    async def exploding(actor: SessionActor, subject: reconcile.Decision) -> None:
        planted.check(subject)
        await carry_out(actor, subject)

    monkeypatch.setattr(reconcile, "reconcile", deciding)
    monkeypatch.setattr(SessionActor, "_decide", exploding)
    async with working() as work:
        planted.armed = True
        work.live.mailbox.tell(messages.ReadAgain("test"))
        await work.crashed()
        await work.finished(planted)


@pytest.mark.parametrize("kind", [reconcile.Observe, reconcile.Submit, reconcile.Close], ids=lambda kind: kind.__name__)
async def test_an_exception_after_a_decision_was_carried_out_neither_repeats_nor_loses_it(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(lambda subject: type(subject) is kind)
    planted.armed = True
    carry_out = SessionActor._decide

    async def exploding(actor: SessionActor, subject: reconcile.Decision) -> None:
        await carry_out(actor, subject)
        if actor.live.session_id == "sess_1":
            planted.check(subject)

    monkeypatch.setattr(SessionActor, "_decide", exploding)
    store = MemoryStore()
    async with working(store=store) as work:
        for gate in work.gates.values():
            gate.set()
        await work.stage.answered("c_one", "c_two")
        await work.stage.ref.wait()
        await until_taken(work.stage, "c_one")
        assert planted.raised == (1 if kind is not reconcile.Close else planted.raised)
        assert live_of(work.stage.runtime, "sess_2").crashes == 0
        assert sorted(work.entered) == ["one", "two"]
    sent = [result.raw for result in work.stage.player.results("c_one")]
    assert len(set(sent)) == 1
    assert (await rows(store))["c_one"].attempt == 1


@pytest.mark.parametrize("method", ["retrieve", "stream"])
async def test_an_exception_in_a_loop_beside_the_mailbox_restarts_the_actor_and_nothing_else(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(lambda subject: subject == "sess_1")
    async with working() as work:
        api: AgentsApi = work.stage.runtime._api
        real = getattr(api, method)

        def exploding(session_id: str, *rest: Any) -> Any:
            planted.check(session_id)
            return real(session_id, *rest)

        monkeypatch.setattr(api, method, exploding)
        planted.armed = True
        if method == "stream":
            work.stage.runtime._kernel.supervisor.actors["sess_1"]._follower.reopen()
        else:
            work.live.mailbox.tell(messages.ReadAgain("test"))
        await work.crashed()
        await work.finished(planted)


@pytest.mark.parametrize("place", ["retrieve", "turns", "post"])
async def test_an_exception_in_the_posting_of_an_input_loses_no_input(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(lambda _: True)
    session = PlayedSession()
    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, Handlers()) as stage:
            ref = await stage.runtime.attach("sess_1")
            await player.until(lambda: bool(session.followers))
            api: AgentsApi = stage.runtime._api
            real = getattr(api, place)

            def exploding(*arguments: Any, **keywords: Any) -> Any:
                planted.check(place)
                return real(*arguments, **keywords)

            monkeypatch.setattr(api, place, exploding)
            planted.armed = True
            turn = await ref.run("hello")
            assert live_of(stage.runtime).crashes == planted.raised == 1
    assert turn.output_text == "Done."
    assert len(player.posts) == 1


async def test_a_session_over_the_restart_limit_is_set_aside_and_its_sibling_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = Planted(lambda _: True)
    planted.always = True
    apply = SessionState.apply

    def exploding(state: SessionState, message: messages.Message) -> list[messages.Effect]:
        if state.session_id == "sess_1":
            planted.check(message)
        return apply(state, message)

    monkeypatch.setattr(SessionState, "apply", exploding)
    store = MemoryStore()
    async with working(store=store, restart_limit=2) as work:
        ref = work.stage.ref
        planted.armed = True
        work.live.mailbox.tell(messages.StreamSilent())
        with pytest.raises(SessionQuarantinedError) as raised:
            await ref.wait()
        assert raised.value.session_id == "sess_1"
        assert planted.raised == 3
        with pytest.raises(SessionQuarantinedError):
            await ref.send("are you there?")
        states = {one.session_id: (one.state, one.crashes) for one in work.stage.runtime.status().sessions}
        assert states == {"sess_1": ("quarantined", 3), "sess_2": ("open", 0)}
        (reason,) = [one.reason for one in work.stage.runtime.status().sessions if one.session_id == "sess_1"]
        assert "PlantedError" in (reason or "")
        # The sibling is answered; the handler of the session that was set aside ends, and its outcome is stored.
        for gate in work.gates.values():
            gate.set()
        await work.stage.answered("c_two")
    assert work.entered.count("one") == 1
    assert work.stage.player.results("c_one") == []
    record = (await rows(store))["c_one"]
    assert (record.state, record.outcome_kind) == (CallState.FINISHED, "ok")


async def test_a_session_set_aside_stays_so_after_a_restart_until_it_is_attached_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = Planted(lambda _: True)
    planted.always = True
    apply = SessionState.apply

    def exploding(state: SessionState, message: messages.Message) -> list[messages.Effect]:
        planted.check(message)
        return apply(state, message)

    monkeypatch.setattr(SessionState, "apply", exploding)
    ran: list[str] = []
    handlers = Handlers()
    entered, gate = anyio.Event(), anyio.Event()

    @handlers.tool
    async def work() -> str:
        """Do the work once."""
        ran.append("work")
        entered.set()
        await gate.wait()
        return "worked"

    store = MemoryStore()
    session = PlayedSession(pending=[call("c_a", "work")])
    with anyio.fail_after(PATIENCE):
        async with play(session) as player:
            async with running(player, handlers, store=store, restart_limit=0) as stage:
                ref = await stage.runtime.attach("sess_1")
                await entered.wait()
                planted.armed = True
                ref.wake()
                with pytest.raises(SessionQuarantinedError):
                    await ref.wait()
                gate.set()
            planted.armed = planted.always = False
            async with running(player, handlers, store=store) as stage:
                assert stage.runtime.status().sessions == []
                assert player.results() == []
                await (await stage.runtime.attach("sess_1")).wait()
            (result,) = player.results()
    assert result.output == "worked"
    assert ran == ["work"]


async def test_an_exception_in_an_actor_that_is_being_stopped_spoils_no_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    async with working() as work:
        reading = anyio.Event()

        async def exploding(session_id: str) -> Session:
            reading.set()
            try:
                await anyio.sleep_forever()
            finally:
                asked.append(session_id)
                raise PlantedError

        monkeypatch.setattr(work.stage.runtime._api, "retrieve", exploding)
        work.live.mailbox.tell(messages.ReadAgain("test"))
        await reading.wait()
        for gate in work.gates.values():
            gate.set()
        await work.stage.answered("c_one", "c_two")
    assert "sess_1" in asked


async def test_expected_trouble_is_no_crash() -> None:
    session = PlayedSession(
        pending=[call("c_a", "f")],
        streams=[[Reset()], [Snapshot(), Close()], [Snapshot()]],
        faults={"stream": [Fault(status=500)], "session": [Fault(status=502), Fault(close=True)]},
    )
    handlers = Handlers()

    @handlers.tool
    async def f() -> str:
        """Answer."""
        return "ok"

    with anyio.fail_after(PATIENCE):
        async with play(session) as player, running(player, handlers, restart_limit=0) as stage:
            await stage.runtime.attach("sess_1")
            await stage.answered("c_a")
            await player.until(lambda: session.opened >= 3)
            assert live_of(stage.runtime).crashes == 0
