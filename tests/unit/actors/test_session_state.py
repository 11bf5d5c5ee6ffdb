"""What follows from one more message of a session; the state remembers what was said, and decides about no call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from answerback.actors.messages import (
    CallFinished,
    Effect,
    EventArrived,
    Fetch,
    Fetched,
    FetchRefused,
    Message,
    OutboxChanged,
    OutputSeen,
    Publish,
    ReadAgain,
    Reconcile,
    ReopenStream,
    ReportAction,
    StopFollowing,
    StreamEnded,
    StreamOpened,
    StreamSilent,
    TurnsChanged,
)
from answerback.actors.session_state import RECENT_EVENTS, SessionState
from answerback.model import CallKey
from answerback.wire.events import Event
from answerback.wire.records import (
    AgentSnapshot,
    Item,
    RequiredAction,
    Session,
    SessionSnapshot,
    ToolDeclaration,
    Turn,
)
from unit.actors.rows import SESSION, key


class Hashes:
    """Hash arguments, and count how often that was asked for."""

    def __init__(self) -> None:
        self.asked_for: list[bytes] = []

    def __call__(self, arguments: bytes) -> str:
        self.asked_for.append(arguments)
        return f"hash of {arguments!r}"


def state(*, declared: Sequence[str] = ("refund",), asynchronous: Sequence[str] = ()) -> SessionState:
    """Return the state after a first retrieve, which declared these functions and asked for nothing."""
    made = SessionState(SESSION, hash_arguments=Hashes())
    made.apply(fetched(declared=declared, asynchronous=asynchronous))
    return made


def call(call_id: str, *, name: str = "refund", arguments: bytes = b"{}", turn_id: str = "turn_1") -> RequiredAction:
    raw = msgspec.Raw(arguments)
    return RequiredAction(type="function_call", turn_id=turn_id, call_id=call_id, name=name, arguments=raw)


def frame(
    status: str, *actions: RequiredAction, event_id: str | None = None, session_id: str = SESSION, kind: str = ""
) -> EventArrived:
    snapshot = SessionSnapshot(session_id, status, None, list(actions))
    return EventArrived(Event(type=kind or f"agent.session.{status}", event_id=event_id, session=snapshot))


def fetched(
    status: str = "in_progress",
    *actions: RequiredAction,
    sent_at: int = 1,
    declared: Sequence[str] | None = None,
    asynchronous: Sequence[str] = (),
    error: Any = None,
) -> Fetched:
    agent = None
    if declared is not None:
        tools = [ToolDeclaration("function", name, name in asynchronous or None) for name in declared]
        agent = AgentSnapshot(tools=[*tools, ToolDeclaration("web_search")])
    session = Session(id=SESSION, status=status, error=error, required_actions=list(actions), agent=agent)
    return Fetched(session, sent_at)


def item(
    kind: str, *, event: str = "agent.session.turn.item.added", turn_id: str | None = "turn_1", **more: Any
) -> EventArrived:
    return EventArrived(Event(type=event, turn_id=turn_id, item=Item(type=kind, **more)))


def kinds(effects: Sequence[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def readings(effects: Sequence[Effect]) -> list[tuple[set[str], int | None]]:
    """Return what each Reconcile lists, and when it was asked for."""
    found = [effect.reading for effect in effects if isinstance(effect, Reconcile)]
    return [({one.call_id for one in reading.asked}, reading.sent_at) for reading in found]


# --- every kind of message ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (StreamOpened(), [Fetch]),
        (StreamSilent(), [Fetch]),
        (StreamEnded(None), []),
        (StreamEnded(503), [Fetch]),
        (ReadAgain("poll"), [Fetch]),
        (CallFinished(key()), []),
        (OutboxChanged(), []),
        (FetchRefused(401), [StopFollowing]),
        (FetchRefused(403), [StopFollowing]),
        (FetchRefused(404), [StopFollowing]),
        (fetched(), [Reconcile]),
        (fetched("idle"), [Reconcile, TurnsChanged]),
        (fetched("failed"), [Reconcile, TurnsChanged, StopFollowing]),
        (frame("in_progress"), [Publish]),
        (frame("requires_action", call("a")), [Publish, Reconcile]),
        (frame("idle"), [Publish, Fetch]),
        (frame("failed"), [Publish, Fetch]),
        (EventArrived(Event(type="tomorrow")), [Publish]),
        (EventArrived(Event(type="error", error={"code": "stream_interrupted"})), [Publish]),
        (EventArrived(Event(type="tomorrow", malformed=True)), [Publish, Fetch]),
    ],
)
def test_every_message_has_its_effects(message: Message, expected: list[type[Effect]]) -> None:
    assert kinds(state().apply(message)) == expected


def test_before_the_first_retrieve_an_end_of_the_stream_asks_for_one() -> None:
    assert kinds(SessionState(SESSION, hash_arguments=Hashes()).apply(StreamEnded(None))) == [Fetch]


@pytest.mark.parametrize(("status", "target"), [(404, "gone"), (401, "quarantined"), (403, "quarantined")])
def test_a_refusal_says_how_the_session_ends_for_us(status: int, target: str) -> None:
    (stop,) = state().apply(FetchRefused(status))
    assert isinstance(stop, StopFollowing)
    assert stop.state == target


def test_a_failed_session_keeps_what_the_server_said_of_it() -> None:
    one = state()
    one.apply(fetched("failed", error="the hosted environment failed"))
    assert one.error == "the hosted environment failed"
    assert not one.idle


# --- lists of calls -------------------------------------------------------------------------------------------------


def test_a_frame_s_list_counts_without_a_time_and_a_retrieve_s_with_the_one_it_was_sent_at() -> None:
    one = state()
    assert readings(one.apply(frame("requires_action", call("a"), call("b")))) == [({"a", "b"}, None)]
    assert readings(one.apply(fetched("requires_action", call("a"), sent_at=7))) == [({"a"}, 7)]


def test_a_frame_without_calls_reconciles_nothing_and_a_retrieve_without_calls_does() -> None:
    one = state()
    one.apply(frame("requires_action", call("a")))
    assert readings(one.apply(frame("in_progress"))) == []
    assert readings(one.apply(fetched("in_progress", sent_at=9))) == [(set(), 9)]


def test_an_old_frame_after_a_newer_retrieve_is_a_hint_and_no_more() -> None:
    one = state()
    one.apply(fetched("idle", sent_at=5))
    assert one.idle
    effects = one.apply(frame("requires_action", call("a")))
    assert readings(effects) == [({"a"}, None)]
    assert not one.idle


def test_only_a_retrieve_can_say_that_the_session_is_idle() -> None:
    one = state()
    assert kinds(one.apply(frame("idle"))) == [Publish, Fetch]
    assert not one.idle
    one.apply(fetched("idle", sent_at=3))
    assert one.idle
    one.apply(frame("in_progress"))
    assert not one.idle


def test_calls_are_told_apart_by_turn_and_keep_name_and_arguments() -> None:
    one = state()
    one.apply(frame("requires_action", call("a", arguments=b'{"n":1}'), call("a", turn_id="turn_2", name="other")))
    first, second = one.asked[key("a")], one.asked[key("a", "turn_2")]
    assert (first.name, first.arguments, first.arguments_hash) == ("refund", b'{"n":1}', "hash of b'{\"n\":1}'")
    assert (second.name, second.arguments) == ("other", b"{}")


@pytest.mark.parametrize(
    "action",
    [
        RequiredAction(type="function_call", turn_id="t", name="refund"),
        RequiredAction(type="function_call", call_id="c", name="refund"),
        RequiredAction(type="function_call", turn_id="", call_id="", name="refund"),
        RequiredAction(type="tomorrow", turn_id="t", call_id="c"),
        RequiredAction(),
    ],
)
def test_what_does_not_name_a_call_is_no_call(action: RequiredAction) -> None:
    one = state()
    effects = one.apply(frame("requires_action", action, call("a")))
    assert readings(effects) == [({"a"}, None)]


def test_a_call_without_a_name_is_still_a_call() -> None:
    one = state()
    one.apply(frame("requires_action", RequiredAction(type="function_call", turn_id="turn_1", call_id="a")))
    assert one.asked[key("a")].name == ""


def test_arguments_that_did_not_change_are_hashed_once() -> None:
    hashes = Hashes()
    one = SessionState(SESSION, hash_arguments=hashes)
    calls = [call(str(n), arguments=b'{"n":%d}' % n) for n in range(8)]
    for remaining in range(8, 0, -1):
        one.apply(frame("requires_action", *calls[:remaining]))
        one.apply(fetched("requires_action", *calls[:remaining]))
    assert len(hashes.asked_for) == 8


def test_arguments_that_did_change_are_hashed_again() -> None:
    one = state()
    one.apply(frame("requires_action", call("a", arguments=b"1")))
    one.apply(frame("requires_action", call("a", arguments=b"2")))
    assert one.asked[key("a")].arguments_hash == "hash of b'2'"


def test_a_frame_about_another_session_changes_nothing_here() -> None:
    one = state()
    assert kinds(one.apply(frame("requires_action", call("a"), session_id="sess_2"))) == [Publish]
    assert one.asked == {}
    assert readings(one.apply(frame("requires_action", call("a"), session_id=""))) == [({"a"}, None)]


def test_calls_that_come_before_the_first_retrieve_ask_for_it() -> None:
    one = SessionState(SESSION, hash_arguments=Hashes())
    assert Fetch in kinds(one.apply(frame("requires_action", call("a"))))
    one.apply(fetched(declared=["refund"]))
    assert Fetch not in kinds(one.apply(frame("requires_action", call("a"), call("b"))))


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_a_frame_delivered_twice_under_one_id_counts_and_is_published_once() -> None:
    one = state()
    message = frame("requires_action", call("a"), event_id="e1")
    assert kinds(one.apply(message)) == [Publish, Reconcile]
    assert one.apply(message) == []


def test_frames_under_other_ids_or_none_count_each_time() -> None:
    one = state()
    for event_id in ("e1", "e2", None, None):
        assert kinds(one.apply(frame("requires_action", call("a"), event_id=event_id))) == [Publish, Reconcile]


def test_the_last_ids_are_remembered_and_the_memory_is_bounded() -> None:
    one = state()
    for n in range(RECENT_EVENTS + 1):
        one.apply(frame("in_progress", event_id=str(n)))
    assert one.apply(frame("in_progress", event_id="1")) == []
    assert one.apply(frame("in_progress", event_id=str(RECENT_EVENTS))) == []
    assert kinds(one.apply(frame("in_progress", event_id="0"))) == [Publish]


# --- silence --------------------------------------------------------------------------------------------------------


def test_silence_over_something_new_means_that_the_stream_is_dead() -> None:
    one = state()
    one.apply(StreamSilent())
    assert ReopenStream in kinds(one.apply(fetched("requires_action", call("a"))))


def test_silence_over_another_status_means_it_too() -> None:
    one = state()
    one.apply(StreamSilent())
    assert ReopenStream in kinds(one.apply(fetched("idle")))


def test_silence_over_nothing_new_is_a_quiet_session() -> None:
    one = state()
    one.apply(fetched("requires_action", call("a")))
    one.apply(StreamSilent())
    assert ReopenStream not in kinds(one.apply(fetched("requires_action", call("a"), sent_at=2)))


def test_news_without_silence_is_no_sign_of_a_dead_stream() -> None:
    one = state()
    assert ReopenStream not in kinds(one.apply(fetched("requires_action", call("a"))))


def test_a_frame_between_silence_and_answer_shows_that_the_stream_lives() -> None:
    one = state()
    one.apply(StreamSilent())
    one.apply(EventArrived(Event(type="anything")))
    assert ReopenStream not in kinds(one.apply(fetched("requires_action", call("a"))))


def test_one_silence_reopens_once() -> None:
    one = state()
    one.apply(StreamSilent())
    one.apply(fetched("requires_action", call("a")))
    assert ReopenStream not in kinds(one.apply(fetched("requires_action", call("b"), sent_at=2)))


# --- items and turns ------------------------------------------------------------------------------------------------


def test_an_output_item_says_which_call_was_answered() -> None:
    (_, seen) = state().apply(item("function_call_output", call_id="a"))
    assert seen == OutputSeen(key("a"))


def test_an_item_names_its_own_turn_before_the_event_does() -> None:
    (_, seen) = state().apply(EventArrived(Event(
        type="agent.session.turn.item.added", turn_id="turn_1",
        item=Item(type="function_call_output", call_id="a", turn_id="turn_2"),
    )))  # fmt: skip
    assert seen == OutputSeen(CallKey(SESSION, "turn_2", "a"))


@pytest.mark.parametrize(
    "message",
    [
        item("function_call", call_id="a", name="refund", status="completed"),
        item("function_call", call_id="a", name="refund", status="in_progress"),
        item("function_call", call_id="a", name="later", event="agent.session.turn.item.done"),
        item("function_call_output", call_id=None),
        item("function_call_output", call_id="a", turn_id=None),
        item("message", role="user"),
        item("tomorrow"),
    ],
)
def test_items_are_history_and_never_work(message: EventArrived) -> None:
    assert kinds(state(declared=["refund", "later"], asynchronous=["later"]).apply(message)) == [Publish]


def test_an_item_of_an_async_function_asks_for_the_list() -> None:
    one = state(declared=["refund", "later"], asynchronous=["later"])
    assert kinds(one.apply(item("function_call", call_id="a", name="later"))) == [Publish, Fetch]


def test_a_call_of_an_async_function_is_marked_as_one() -> None:
    one = state(declared=["refund", "later"], asynchronous=["later"])
    one.apply(frame("in_progress", call("a", name="later"), call("b")))
    assert (one.asked[key("a")].is_async, one.asked[key("b")].is_async) == (True, False)


def test_a_retrieve_without_an_agent_keeps_what_is_known_of_the_tools() -> None:
    one = state(declared=["refund", "later"], asynchronous=["later"])
    one.apply(fetched())
    assert one.declared == frozenset({"refund", "later"})
    assert one.asynchronous == frozenset({"later"})
    one.apply(fetched(declared=["refund"]))
    assert one.declared == frozenset({"refund"})
    assert not one.asynchronous


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_the_end_of_a_root_turn_asks_for_the_session(status: str) -> None:
    event = Event(type=f"agent.session.turn.{status}", turn=Turn(id="turn_1", status=status))
    assert Fetch in kinds(state().apply(EventArrived(event)))


@pytest.mark.parametrize("turn", [Turn("t", "in_progress"), Turn("t", "queued"), Turn("t", "completed", "sub_1")])
def test_a_turn_that_goes_on_or_is_a_subagent_s_asks_for_nothing(turn: Turn) -> None:
    assert kinds(state().apply(EventArrived(Event(type="agent.session.turn.x", turn=turn)))) == [Publish]


# --- other kinds of actions -----------------------------------------------------------------------------------------

APPROVAL = RequiredAction(type="mcp_approval_request", request_id="r1")
CONNECTION = RequiredAction(type="environment_connection", environment_id="e1")


def test_an_action_nobody_here_answers_is_reported_once_for_as_long_as_it_is_listed() -> None:
    one = state()
    assert ReportAction("mcp_approval_request") in one.apply(frame("requires_action", APPROVAL))
    assert one.other_actions == {"mcp_approval_request"}
    assert ReportAction not in kinds(one.apply(fetched("requires_action", APPROVAL)))
    both = one.apply(fetched("requires_action", APPROVAL, CONNECTION))
    assert [effect for effect in both if isinstance(effect, ReportAction)] == [ReportAction("environment_connection")]


def test_an_action_that_comes_back_is_reported_again() -> None:
    one = state()
    one.apply(fetched("requires_action", APPROVAL))
    one.apply(fetched("in_progress"))
    assert one.other_actions == frozenset()
    assert ReportAction("mcp_approval_request") in one.apply(fetched("requires_action", APPROVAL))


def test_function_calls_are_decided_beside_other_actions() -> None:
    effects = state().apply(frame("requires_action", APPROVAL, call("a")))
    assert readings(effects) == [({"a"}, None)]


def test_another_approval_under_silence_is_something_new() -> None:
    one = state()
    one.apply(fetched("requires_action", APPROVAL))
    one.apply(StreamSilent())
    other = RequiredAction(type="mcp_approval_request", request_id="r2")
    assert ReopenStream in kinds(one.apply(fetched("requires_action", other)))


def test_the_state_says_where_the_session_stands() -> None:
    one = SessionState(SESSION, hash_arguments=Hashes())
    assert repr(one) == "<SessionState sess_1 unknown, 0 required>"
    one.apply(frame("requires_action", call("a"), APPROVAL))
    assert repr(one) == "<SessionState sess_1 requires_action, 2 required>"
