"""A session that is idle costs nothing, and is there again for whoever needs it."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from answerback import SessionError
from answerback.actors.journal import Journal
from answerback.actors.live import LiveSession
from answerback.actors.session_state import SessionState
from answerback.errors import SessionGoneError
from answerback.model import InputRecord, SessionRecord
from answerback.store.memory import MemoryStore
from answerback.testing import Harness
from answerback.wire.events import Event
from integration.fleet import Lists, counted, create_elsewhere, fleet, virtually

REST = 61.0
POLL = 46.0


def test_an_idle_session_leaves_no_stream_no_actor_and_no_object_behind(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.open("one", "ping")
            live = weakref.ref(ours.runtime._kernel.live[session_id])
            await anyio.sleep(REST - 10)
            assert ours.lives(session_id)
            assert ours.streams(session_id) == 1
            await anyio.sleep(10)
            assert not ours.lives(session_id)
            assert ours.streams() == 0
            gc.collect()
            assert live() is None
            assert counted() == {"LiveSession": 0, "Mailbox": 0, "SessionActor": 0}
            status = ours.runtime.status()
            assert (status.sessions, status.passivated, status.streams) == ([], 1, 0)

    virtually(anyio_backend, body)


def test_what_a_session_ref_asks_brings_the_session_back(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="hello")
            first = await session.wait()
            await anyio.sleep(REST)
            assert session.status == "idle"
            assert "at rest" in repr(session)
            assert session.required_actions == frozenset()
            assert (await session.wait()).turn_id == first.turn_id
            await anyio.sleep(REST)
            assert not ours.lives(session.id)
            await session.send("ping", key="k")
            turn = await session.wait()
            assert (turn.output_text, ours.ran) == ("pong it is", ["ping"])
            await anyio.sleep(REST)
            assert not ours.lives(session.id)
            # The same message again, after the rest: it is known, and not asked a second time.
            await session.send("ping", key="k")
            assert (await session.wait()).turn_id == turn.turn_id
            assert ours.ran == ["ping"]

    virtually(anyio_backend, body)


def test_whoever_listens_or_waits_keeps_a_session_awake(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="hello")
            await session.wait()
            async with session.events():
                await anyio.sleep(10 * REST)
                assert ours.lives(session.id)
            await anyio.sleep(REST - 10)
            assert ours.lives(session.id)
            await anyio.sleep(10)
            assert not ours.lives(session.id)
            async with session.events() as events:
                await session.send("hello")
                await session.wait()
                assert "agent.session.turn.completed" in {event.type for event in _drained(events)}

    virtually(anyio_backend, body)


def _drained(events: MemoryObjectReceiveStream[Event]) -> list[Event]:
    return [events.receive_nowait() for _ in range(events.statistics().current_buffer_used)]


def test_a_session_with_an_open_call_is_never_passivated(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="slow")
            await anyio.sleep(2 * REST)
            assert ours.lives(session.id)
            assert (await session.wait()).output_text == "at last"

    virtually(anyio_backend, body)


def test_a_wake_brings_a_session_back_before_any_poll(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness, poll_interval=1e6) as ours:
            session_id = await ours.open("one")
            await anyio.sleep(REST)
            await ours.say(session_id, "ping")
            await anyio.sleep(1000)
            assert ours.ran == []
            ours.runtime.wake(session_id)
            ours.runtime.wake("sess_nobody_knows")
            await anyio.sleep(1)
            assert ours.answers(session_id) == ["pong"]
            assert not ours.lives("sess_nobody_knows")

    virtually(anyio_backend, body)


@pytest.mark.parametrize("origin", ["opened", "attached"])
def test_a_call_of_a_passivated_session_is_answered_within_the_poll_bound(anyio_backend: str, origin: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            if origin == "opened":
                session_id = await ours.open("one")
            else:
                session_id = await ours.elsewhere("hello", {}, "ping")
                await ours.runtime.attach(session_id)
            await anyio.sleep(REST)
            assert not ours.lives(session_id)
            await ours.say(session_id, "ping")
            await anyio.sleep(POLL)
            assert ours.answers(session_id) == ["pong"]
            await anyio.sleep(REST)
            assert not ours.lives(session_id)
            assert ours.runtime.status().passivated == 1

    virtually(anyio_backend, body)


def test_many_attached_sessions_take_turns_and_none_is_forgotten(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            ids = [await ours.elsewhere("hello", {}, "ping") for _ in range(120)]
            for session_id in ids:
                await ours.runtime.attach(session_id)
            await anyio.sleep(REST)
            assert ours.runtime.status().passivated == len(ids)
            for session_id in ids:
                await ours.say(session_id, "ping")
            # 50 in a round.
            await anyio.sleep(3 * POLL)
            assert [ours.answers(session_id) for session_id in ids] == [["pong"]] * len(ids)

    virtually(anyio_backend, body)


def test_the_next_process_finds_what_moved_while_none_was_there(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        async with fleet(harness, store=store, ran=ran) as ours:
            opened = await ours.open("one")
            attached = await ours.elsewhere("hello", {}, "ping")
            await ours.runtime.attach(attached)
            await anyio.sleep(REST)
        for session_id in (opened, attached):
            await ours.say(session_id, "ping")
        await anyio.sleep(1000)
        assert ran == []
        async with fleet(harness, store=store, ran=ran) as ours:
            await anyio.sleep(5)
            assert [ours.answers(opened), ours.answers(attached)] == [["pong"], ["pong"]]

    virtually(anyio_backend, body)


def test_calls_that_come_after_the_first_list_of_a_verified_session_are_ours(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        async with fleet(harness, store=store, ran=ran) as ours:
            pending = await create_elsewhere(harness, "ping", {}, "ping")
            session = await ours.runtime.attach(pending, pending="verify")
            await session.wait()
            # It may have run elsewhere, so it did not run here.
            assert ran == []
            await session.run("ping")
            assert ran == ["ping"]
            await anyio.sleep(REST)
            assert not ours.lives(pending)
            await session.run("ping")
            assert ran == ["ping", "ping"]
        async with fleet(harness, store=store, ran=ran) as ours:
            session = await ours.runtime.attach(pending)
            await session.run("ping")
            assert ran == ["ping"] * 3

    virtually(anyio_backend, body)


def test_a_message_sent_while_the_session_comes_back_is_not_lost(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="hello")
            await session.wait()
            for round_ in range(3):
                await anyio.sleep(REST)
                assert not ours.lives(session.id)
                async with anyio.create_task_group() as group:
                    for number in range(5):
                        group.start_soon(lambda key=f"{round_}/{number}": session.send("hello", key=key))  # type: ignore[misc]
                await session.wait()
            await ours.runtime.store.flush()
            inputs = await ours.runtime.store.inputs(session.id)
            assert len(inputs) == 16
            assert {entry.state for entry in inputs} == {"done"}

    virtually(anyio_backend, body)


def test_a_session_that_is_detached_and_attached_in_one_breath_is_followed(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.elsewhere("hello", {}, "ping")
            for _ in range(3):
                session = await ours.runtime.attach(session_id)
                await ours.runtime.detach(session_id)
                assert not ours.lives(session_id)
                with pytest.raises(SessionError, match="detached"):
                    await session.send("hello")
            session = await ours.runtime.attach(session_id)
            assert (await session.run("ping")).output_text == "pong it is"
            await anyio.sleep(REST)
            # Also one that is at rest can be let go, and stays so.
            await session.detach()
            await ours.say(session_id, "ping")
            await anyio.sleep(10 * POLL)
            assert ours.ran == ["ping"]
            assert ours.runtime.status().passivated == 0

    virtually(anyio_backend, body)


def test_an_actor_that_is_stopped_and_started_in_one_breath_comes_back(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session = await ours.runtime.open("one", agent={"model": "m"}, input="hello")
            await session.wait()
            kernel = ours.runtime._kernel
            for _ in range(3):
                kernel.supervisor.stop(session.id)
                kernel.supervisor.start(kernel.live[session.id])
            assert (await session.run("ping")).output_text == "pong it is"
            assert list(kernel.supervisor.actors) == [session.id]
            assert ours.streams(session.id) == 1

    virtually(anyio_backend, body)


async def test_an_input_stored_while_the_inputs_are_read_is_not_forgotten() -> None:
    record = SessionRecord(local_id="l", session_id="s")
    journal = Journal("s", MemoryStore(), now=lambda: 0)
    live = LiveSession(record, journal=journal, state=SessionState("s", hash_arguments=lambda _: ""))
    early = InputRecord(session_id="s", key="b")
    live.queue(early)
    live.loaded([InputRecord(session_id="s", key="a", state="done")])
    assert live.newest_input == early
    assert live.awaiting
    # Read and queued: once is enough, and the row knows better.
    other = LiveSession(record, journal=journal, state=live.state)
    other.queue(early)
    other.loaded([InputRecord(session_id="s", key="b", state="done")])
    assert not other.awaiting


def test_detaching_while_a_handler_runs_keeps_what_it_returns_for_the_next_attach(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.elsewhere("slow", {}, "slow")
            await ours.runtime.attach(session_id)
            began = anyio.current_time()
            await anyio.sleep(10)
            await ours.runtime.detach(session_id)
            await anyio.sleep(10)
            session = await ours.runtime.attach(session_id)
            assert (await session.wait()).output_text == "at last"
            assert ours.ran == ["slow"]
            # The actor that came back was told by the handler of its predecessor; no poll was needed.
            assert anyio.current_time() - began < 302

    virtually(anyio_backend, body)


def test_a_session_deleted_while_it_rests_is_found_to_be_gone(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.elsewhere("hello", {}, "ping")
            session = await ours.runtime.attach(session_id)
            await anyio.sleep(REST)
            await harness.client.beta.agents.sessions.delete(session_id)
            await anyio.sleep(POLL)
            record = await ours.runtime.store.session(session_id=session_id)
            assert record is not None
            assert record.state == "gone"
            assert ours.runtime.status().passivated == 0
            with pytest.raises(SessionGoneError):
                await session.wait()

    virtually(anyio_backend, body)


def test_sessions_that_ended_are_forgotten_one_by_one(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            for number in range(100):
                session_id = await ours.open(f"s{number}")
                await harness.client.beta.agents.sessions.delete(session_id)
                ours.runtime.wake(session_id)
            await anyio.sleep(REST)
            states = {one.state for one in ours.runtime.status().sessions}
            assert states == {"gone"}
            assert counted()["LiveSession"] == 64
            # One that is no longer in memory still says how it ended.
            session = await ours.runtime.open("s0", agent={"model": "m"})
            with pytest.raises(SessionGoneError):
                await session.wait()

    virtually(anyio_backend, body)


def test_a_list_that_cannot_be_read_is_asked_again(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = Lists(monkeypatch)
    lists.failures = [503, None, 429]

    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.open("one")
            await anyio.sleep(REST)
            await ours.say(session_id, "ping")
            await anyio.sleep(3 * POLL)
            assert lists.failures == []
            assert ours.answers(session_id) == ["pong"]

    virtually(anyio_backend, body)


def test_a_server_whose_list_cannot_be_filtered_is_asked_for_one_session_at_a_time(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = Lists(monkeypatch)
    lists.failures = [400] * 1000

    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours:
            session_id = await ours.open("one")
            await anyio.sleep(REST)
            await ours.say(session_id, "ping")
            await anyio.sleep(2 * POLL)
            assert ours.answers(session_id) == ["pong"]

    virtually(anyio_backend, body)


def test_a_session_without_a_stream_is_polled_and_answered_all_the_same(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness, max_streams=2) as ours, anyio.create_task_group() as group:
            texts: list[str] = []

            async def talk(number: int) -> None:
                session = await ours.runtime.open(f"k{number}", agent={"model": "m"}, input="hello")
                await session.wait()
                texts.append((await session.run("ping")).output_text)

            began = anyio.current_time()
            for number in range(30):
                group.start_soon(talk, number)
            while len(texts) < 30:
                assert ours.streams() <= 2
                await anyio.sleep(0.1)
            # Its own work is looked at quickly, long before the slow poll.
            assert anyio.current_time() - began < 20

    virtually(anyio_backend, body)
