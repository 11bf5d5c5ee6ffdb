"""A daemon that meets sessions it did not create: what it adopts, and what it leaves alone."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import msgspec
import pytest

from answerback import ApiError, ConfigurationError, Discover
from answerback.actors.scan import SessionScan
from answerback.store.memory import MemoryStore
from answerback.testing import Harness
from answerback.wire.records import AgentSnapshot, Page, Session
from integration.fleet import Fleet, Lists, create_elsewhere, fleet, virtually

ACME = {"app": "acme"}
OTHER = {"app": "other"}
POLL = 46.0


class Four(msgspec.Struct, frozen=True):
    """One session of our store, three made elsewhere; all wait for a result."""

    ours: str
    theirs: str
    ping: str
    sync: str

    def posts(self, harness: Harness) -> set[str]:
        """Return the names of the sessions to which a result was posted."""
        posted = {entry.session_id for entry in harness.log if entry.kind == "tool_result"}
        return {name for name in self.__struct_fields__ if getattr(self, name) in posted}


async def four(harness: Harness, store: MemoryStore, ran: list[str]) -> Four:
    """Make the four, and end the process that made the first before it answers."""
    async with fleet(harness, store=store, ran=ran, drain_timeout=0.0) as first:
        opened = await first.runtime.open("s1", agent={"model": "m"}, input="hello")
        await opened.wait()
    await first.say(opened.id, "ping")
    return Four(
        opened.id,
        await create_elsewhere(harness, "sync", OTHER, "crm_sync"),
        await create_elsewhere(harness, "ping", ACME, "ping"),
        await create_elsewhere(harness, "sync", ACME, "crm_sync"),
    )


async def discovering(group: anyio.abc.TaskGroup, ours: Fleet, discover: Discover) -> None:
    """Serve until the test ends."""
    group.start_soon(lambda: ours.runtime.serve(discover=discover))


def test_by_default_only_sessions_of_the_store_are_touched(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        sessions = await four(harness, store, ran)
        async with fleet(harness, store=store, ran=ran) as ours:
            with anyio.move_on_after(10 * POLL):
                await ours.runtime.serve()
        assert sessions.posts(harness) == {"ours"}
        assert ran == ["ping"]
        async with store:
            assert len(await store.sessions()) == 1

    virtually(anyio_backend, body)


@pytest.mark.parametrize("unhandled", ["answer", "hold"])
def test_a_filter_adopts_what_matches_and_nothing_else(anyio_backend: str, unhandled: str) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        sessions = await four(harness, store, ran)
        async with fleet(harness, store=store, ran=ran, unhandled=unhandled) as ours:
            with anyio.move_on_after(10 * POLL):
                await ours.runtime.serve(discover=Discover(metadata=ACME))
            calls = await store_calls(store, sessions.sync)
        # The session declares crm_sync, so somebody else may handle it: it is held, and answered at its deadline.
        assert sessions.posts(harness) == {"ours", "ping"}
        assert [record.hold_until is not None for record in calls] == [True]
        assert ran == ["ping", "ping"]
        async with fleet(harness, store=store, ran=ran, unhandled=unhandled) as ours:
            await anyio.sleep(601)
            assert sessions.posts(harness) == {"ours", "ping", "sync"}
        assert ran == ["ping", "ping"]

    virtually(anyio_backend, body)


async def store_calls(store: MemoryStore, session_id: str) -> list[Any]:
    """Read the calls of a session from a store its runtime has closed."""
    async with store:
        return await store.calls(session_id=session_id)


def test_an_adopted_session_that_is_deleted_ends_with_one_line(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        store, ran = MemoryStore(), list[str]()
        async with fleet(harness, store=store, ran=ran) as ours, anyio.create_task_group() as group:
            await discovering(group, ours, Discover(metadata=ACME))
            adopted = await create_elsewhere(harness, "ping", ACME, "ping")
            await anyio.sleep(POLL)
            assert ours.answers(adopted) == ["pong"]
            caplog.clear()
            caplog.set_level(logging.WARNING)
            await harness.client.beta.agents.sessions.delete(adopted)
            await anyio.sleep(100 * POLL)
            assert (ours.runtime.status().streams, ran) == (0, ["ping"])
            lines = [record.getMessage() for record in caplog.records]
            assert lines == ["stopped following a session: the server does not know the session (404)"]
            row = await store.session(session_id=adopted)
            assert row is not None
            assert row.state == "gone"
            assert len(await store.calls(session_id=adopted)) == 1
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)


def test_a_session_that_the_lagging_list_shows_late_is_adopted_then(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            await discovering(group, ours, Discover(metadata=ACME, interval=10))
            late = await create_elsewhere(harness, "ping", ACME, "ping")
            await anyio.sleep(90)
            assert not ours.lives(late)
            await anyio.sleep(30)
            assert ours.answers(late) == ["pong"]
            (discovery,) = ours.runtime.status().discoveries
            assert (discovery.adopted, discovery.failures) == (1, 0)
            group.cancel_scope.cancel()

    virtually(anyio_backend, body, knobs={"list_lag": 100.0})


def test_an_idle_match_costs_nothing_until_it_moves(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        idle = await create_elsewhere(harness, "hello", ACME, "ping")
        await anyio.sleep(1000)
        fresh = await create_elsewhere(harness, "hello", ACME, "ping")
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            await discovering(group, ours, Discover(metadata=ACME))
            await anyio.sleep(5)
            # One that was at work a moment ago is likely to be again, and has a stream.
            assert (ours.lives(idle), ours.lives(fresh)) == (False, True)
            assert await ours.runtime.store.session(session_id=idle) is None
            for session_id in (idle, fresh):
                await ours.say(session_id, "ping")
            await anyio.sleep(1)
            assert ours.answers(fresh) == ["pong"]
            await anyio.sleep(POLL)
            assert ours.answers(idle) == ["pong"]
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)


def test_what_was_let_go_is_not_adopted_again(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            await discovering(group, ours, Discover(metadata=ACME))
            detached = await create_elsewhere(harness, "ping", ACME, "ping")
            paused = await create_elsewhere(harness, "ping", ACME, "ping")
            await anyio.sleep(POLL)
            await ours.runtime.detach(detached)
            await ours.runtime.pause(paused)
            for session_id in (detached, paused):
                await ours.say(session_id, "ping")
            await anyio.sleep(10 * POLL)
            assert ours.ran == ["ping", "ping"]
            await ours.runtime.resume(paused)
            await anyio.sleep(1)
            assert ours.answers(paused) == ["pong", "pong"]
            assert ours.answers(detached) == ["pong"]
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)


def test_sessions_that_another_answerback_created_are_left_to_it(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        elsewhere = MemoryStore()
        async with fleet(harness, store=elsewhere) as other:
            session = await other.runtime.open("k", agent={"model": "m"}, input="hello", metadata=ACME)
            await session.wait()
        await other.say(session.id, "ping")
        async with fleet(harness) as ours:
            with anyio.move_on_after(10 * POLL):
                await ours.runtime.serve(discover=Discover(metadata=ACME))
        assert ours.ran == []

    virtually(anyio_backend, body)


def test_pending_calls_of_adopted_sessions_can_be_treated_as_interrupted(anyio_backend: str) -> None:
    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            adopted = await create_elsewhere(harness, "ping", ACME, "ping")
            await discovering(group, ours, Discover(metadata=ACME, pending="verify"))
            await anyio.sleep(5)
            assert ours.ran == []
            (record,) = await ours.runtime.calls(session_id=adopted)
            assert record.outcome_kind == "unknown"
            await ours.say(adopted, "ping")
            await anyio.sleep(5)
            assert ours.ran == ["ping"]
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)


@pytest.mark.parametrize("status", [401, 403, 429, 500, None])
def test_a_list_that_cannot_be_read_is_waited_for(
    anyio_backend: str, status: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lists = Lists(monkeypatch)
    lists.failures = [status] * 20

    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            await discovering(group, ours, Discover(metadata=ACME))
            await create_elsewhere(harness, "ping", ACME, "ping")
            await anyio.sleep(20)
            (discovery,) = ours.runtime.status().discoveries
            assert discovery.failures > 1
            # Backoff, not a storm; and no crash: the kept actor never ended.
            assert lists.asked <= 10
            await anyio.sleep(1000)
            assert ours.ran == ["ping"]
            assert ours.runtime.status().discoveries[0].failures == 0
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)
    assert len([record for record in caplog.records if record.name == "answerback.discovery"]) == 1


def test_a_discovery_that_crashes_is_started_again(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = [1, 2, 3]
    read = SessionScan.read

    async def crashing(scan: SessionScan, wanted: Any) -> list[Session]:
        if crashes:
            raise LookupError(crashes.pop())
        return await read(scan, wanted)

    monkeypatch.setattr(SessionScan, "read", crashing)

    async def body(harness: Harness) -> None:
        async with fleet(harness) as ours, anyio.create_task_group() as group:
            await create_elsewhere(harness, "ping", ACME, "ping")
            await discovering(group, ours, Discover(metadata=ACME))
            await anyio.sleep(60)
            assert ours.ran == ["ping"]
            group.cancel_scope.cancel()

    virtually(anyio_backend, body)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"metadata": {}},
        {"metadata": {"n": 1}},
        {"metadata": {str(n): "v" for n in range(17)}},
        {"metadata": ACME, "interval": 0},
        {"agent_id": "a", "pending": "maybe"},
    ],
)
def test_a_filter_that_filters_nothing_or_cannot_be_asked_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Discover(**settings)


# --- the list in portions ---------------------------------------------------------------------------------------------


class ListOnly:
    """Serves one list of sessions, newest first, as the API pages it; it filters nothing."""

    def __init__(self, count: int) -> None:
        self.sessions = [Session(id=f"s{number}", status="idle", metadata=dict(ACME)) for number in range(count)]
        self.asked = 0

    async def page(self, *, metadata: Any, agent_id: str | None = None, after: str | None = None) -> Page[Session]:
        self.asked += 1
        ids = [session.id for session in self.sessions]
        if after is not None and after not in ids:
            raise ApiError("no such cursor", status=404)
        start = ids.index(after) + 1 if after is not None else 0
        data = self.sessions[start : start + 100]
        return Page(data=data, last_id=data[-1].id if data else None, has_more=start + 100 < len(ids))

    def scan(self, agent_id: str | None = None) -> SessionScan:
        """Return a scan of this list, in portions of three pages."""
        api: Any = type("Api", (), {"sessions": staticmethod(self.page)})
        return SessionScan(api, metadata=ACME, agent_id=agent_id, pages=3)


async def test_a_long_list_is_read_in_portions_that_cover_it_in_turn() -> None:
    served = ListOnly(1000)
    scan = served.scan()
    seen: list[str] = []
    readings = 0
    while len(set(seen)) < 1000:
        seen += [session.id for session in await scan.read(lambda _: True)]
        readings += 1
        assert served.asked <= 3 * readings
        # The newest page is part of every portion.
        assert seen.count("s0") == readings
    assert readings <= 5


async def test_a_short_list_is_read_with_one_request() -> None:
    served = ListOnly(100)
    scan = served.scan()
    for _ in range(3):
        assert len(await scan.read(lambda _: True)) == 100
    assert served.asked == 3


async def test_a_cursor_that_was_deleted_begins_the_list_anew() -> None:
    served = ListOnly(1000)
    scan = served.scan()
    await scan.read(lambda _: True)
    del served.sessions[250:350]
    seen: set[str] = set()
    for _ in range(6):
        seen |= {session.id for session in await scan.read(lambda _: True)}
    assert len(seen) == 900


async def test_what_a_server_lists_beside_the_filter_is_left_out() -> None:
    served = ListOnly(0)
    served.sessions = [
        Session(id="match", metadata={**ACME, "more": "yes"}, agent=AgentSnapshot(id="agent_1")),
        Session(id="other_app", metadata=dict(OTHER), agent=AgentSnapshot(id="agent_1")),
        Session(id="no_metadata", agent=AgentSnapshot(id="agent_1")),
        Session(id="other_agent", metadata=dict(ACME), agent=AgentSnapshot(id="agent_2")),
    ]
    found = await served.scan(agent_id="agent_1").read(lambda _: True)
    assert [session.id for session in found] == ["match"]
