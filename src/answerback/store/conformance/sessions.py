"""What a store promises about sessions and inputs."""

from __future__ import annotations

from answerback.model import CallKey, CallState, InputRecord, SessionRecord
from answerback.store.base import (
    PutInput,
    PutSession,
    UpdateInput,
    UpdateSession,
)
from answerback.store.conformance.builders import (
    MakeStore,
    moved,
    observed,
    opened,
    raises,
)


async def check_the_names_of_a_session_are_unique(make_store: MakeStore) -> None:
    """A taken local_id, session_id or key counts 0 and changes nothing; a free one inserts."""
    record = SessionRecord(local_id="l1", session_id="sess_1", key="k1", request=b"{}", active=True, created_at=1)
    async with opened(make_store) as store:
        assert list(await store.write(PutSession(record)).committed()) == [1]
        taken = [
            SessionRecord(local_id="l1"),
            SessionRecord(local_id="l2", session_id="sess_1"),
            SessionRecord(local_id="l2", key="k1"),
        ]
        assert list(await store.write(*map(PutSession, taken)).committed()) == [0, 0, 0]
        assert list(await store.write(PutSession(SessionRecord(local_id="l3"))).committed()) == [1]
        for names in ({"local_id": "l1"}, {"session_id": "sess_1"}, {"key": "k1"}):
            assert await store.session(**names) == record
        assert await store.session(key="nobody") is None
        assert [session.local_id for session in await store.sessions()] == ["l3", "l1"]
        assert len(await store.sessions(limit=1)) == 1
        await raises(ValueError, store.session)


async def check_a_session_row_is_changed_by_its_local_id(make_store: MakeStore) -> None:
    """An unknown local_id counts 0."""
    async with opened(make_store) as store:
        await store.write(PutSession(SessionRecord(local_id="l1"))).committed()
        update = UpdateSession(local_id="l1", changes={"session_id": "sess_1", "status": "idle", "active": True})
        nobody = UpdateSession(local_id="l2", changes={"status": "idle"})
        assert list(await store.write(update, nobody).committed()) == [1, 0]
        assert await store.session(session_id="sess_1") == SessionRecord(
            local_id="l1", session_id="sess_1", status="idle", active=True
        )


async def check_inputs_are_idempotent_by_key_and_keep_their_order(make_store: MakeStore) -> None:
    """A second input of a key counts 0; `seq` grows; ended ones are not open; `sources` guards an update."""
    inputs = [InputRecord(session_id="sess_1", key=name, element=name.encode()) for name in ("b", "a", "c")]
    async with opened(make_store) as store:
        await store.write(*map(PutInput, inputs)).committed()
        again = PutInput(InputRecord(session_id="sess_1", key="a", element=b"other"))
        assert list(await store.write(again).committed()) == [0]
        stored = await store.inputs("sess_1")
        assert [(record.key, record.element) for record in stored] == [("b", b"b"), ("a", b"a"), ("c", b"c")]
        assert stored[0].seq < stored[1].seq < stored[2].seq
        counts = await store.write(
            UpdateInput(session_id="sess_1", key="b", changes={"state": "done"}, sources=("queued", "sent")),
            UpdateInput(session_id="sess_1", key="a", changes={"state": "sent"}, sources=("accepted",)),
            UpdateInput(session_id="sess_1", key="c", changes={"baseline_open": True, "baseline_turn": "turn_0"}),
        ).committed()
        assert list(counts) == [1, 0, 1]
        open_inputs = await store.open_inputs("sess_1")
        assert [(record.key, record.state, record.baseline_open) for record in open_inputs] == [
            ("a", "queued", False),
            ("c", "queued", True),
        ]


async def check_unfinished_sessions_are_those_with_something_left(make_store: MakeStore) -> None:
    """Open sessions with an open call, an open input, or an active turn; not ended ones, not idle ones."""
    async with opened(make_store) as store:
        for name in ("call", "input", "active", "idle", "ended"):
            row = SessionRecord(local_id=name, session_id=name, active=name == "active")
            await store.write(PutSession(row)).committed()
        closed = CallKey("idle", "turn_1", "c1")
        await store.write(
            UpdateSession(local_id="ended", changes={"state": "gone", "active": True}),
            observed(CallKey("call", "turn_1", "c1")),
            observed(closed),
            moved(CallState.OBSOLETE, source=CallState.REQUESTED, key=closed),
            PutInput(InputRecord(session_id="input", key="i1")),
            PutInput(InputRecord(session_id="idle", key="i1", state="refused")),
        ).committed()
        assert {session.local_id for session in await store.unfinished_sessions()} == {"call", "input", "active"}


async def check_open_sessions_are_paged_through_by_their_id(make_store: MakeStore) -> None:
    """Only open sessions of the origin that have an id; each page begins after the cursor."""
    async with opened(make_store) as store:
        for name in ("d", "b", "a", "c", "gone"):
            await store.write(PutSession(SessionRecord(local_id=name, session_id=name, origin="attached"))).committed()
        await store.write(
            PutSession(SessionRecord(local_id="ours", session_id="ours", origin="opened")),
            PutSession(SessionRecord(local_id="intent", origin="attached")),
            UpdateSession(local_id="gone", changes={"state": "gone"}),
        ).committed()
        assert await store.open_session_ids(origin="attached", limit=3) == ["a", "b", "c"]
        assert await store.open_session_ids(origin="attached", after="c") == ["d"]
        assert await store.open_session_ids(origin="opened") == ["ours"]
