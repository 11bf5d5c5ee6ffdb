"""What the session told us, and what follows from one more message. Pure: no I/O, no clock, no store.

It never decides about calls (that is `reconcile`); it decides when to read, when to reconcile and what to publish.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from answerback.actors.messages import (
    Asked,
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
    Reading,
    Reconcile,
    ReopenStream,
    ReportAction,
    StopFollowing,
    StreamEnded,
    StreamOpened,
    StreamSilent,
    TurnsChanged,
)
from answerback.model import CallKey
from answerback.wire.events import Event
from answerback.wire.records import RequiredAction

RECENT_EVENTS = 1024
"""How many event ids are remembered: the service delivers a frame twice with one id, close together."""

HashArguments = Callable[[bytes], str]


class SessionState:
    """The view of one session. `apply` is the only way it changes."""

    def __init__(self, session_id: str, *, hash_arguments: HashArguments) -> None:
        self.session_id = session_id
        self.status = ""
        self.status_at = -1
        """The tick of the GET that told `status`; -1 while only frames did."""
        self.declared: frozenset[str] | None = None
        """Names of the functions the session declares; None until a retrieve told them."""
        self.asynchronous: frozenset[str] = frozenset()
        self.error: str | None = None
        self.asked: dict[CallKey, Asked] = {}
        """The function calls of the newest list, from a frame or a GET."""
        self._hash = hash_arguments
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._silent = False
        self.other_actions: frozenset[str] = frozenset()
        """Kinds of required actions, other than function calls, that are listed now."""
        self._recent: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SessionState {self.session_id} {self.status or 'unknown'}, {len(self._known)} required>"

    @property
    def idle(self) -> bool:
        """Whether the newest GET said that no turn is in progress."""
        return self.status == "idle" and self.status_at >= 0

    def apply(self, message: Message) -> list[Effect]:
        """Take one message; return what is to be done, in order."""
        match message:
            case EventArrived(event):
                return self._event(event)
            case StreamOpened():
                # Subscribe first, then read: what changed in between is in the answer or on the stream.
                return [Fetch("stream opened")]
            case StreamSilent():
                self._silent = True
                return [Fetch("stream silent")]
            case StreamEnded(status):
                unread = self.declared is None
                return [Fetch("stream refused")] if status is not None or unread else []
            case Fetched():
                return self._fetched(message)
            case FetchRefused(status):
                return [_stop(status)]
            case ReadAgain(reason):
                return [Fetch(reason)]
            case CallFinished() | OutboxChanged():
                return []

    def _event(self, event: Event) -> list[Effect]:
        self._silent = False
        if event.event_id is not None and self._seen(event.event_id):
            return []
        effects: list[Effect] = [Publish(event)]
        if event.malformed:
            return [*effects, Fetch("an event could not be read")]
        if event.session is not None and event.type.startswith("agent.session."):
            effects += self._lifecycle(event)
        elif event.ends_turn:
            # Turns are matched once the session is read as idle; the idle frame that follows may be lost.
            effects.append(Fetch("turn over"))
        elif event.item is not None and event.type.endswith("turn.item.added"):
            effects += self._item(event)
        return effects

    def _lifecycle(self, event: Event) -> list[Effect]:
        """A frame's snapshot: what it lists is required, what it leaves out says nothing."""
        assert event.session is not None
        snapshot = event.session
        if snapshot.id not in {"", self.session_id}:
            return []
        self.status, self.status_at = snapshot.status, -1
        actions = snapshot.required_actions
        self._known = _identities(actions)
        effects: list[Effect] = list(self._other_actions(actions))
        asked = self._asked(actions)
        if asked:
            effects.append(Reconcile(Reading(asked)))
        if snapshot.status in {"idle", "failed"} or (asked and self.declared is None):
            effects.append(Fetch(f"session {snapshot.status}"))
        return effects

    def _item(self, event: Event) -> list[Effect]:
        item = event.item
        assert item is not None
        turn_id = item.turn_id or event.turn_id
        if item.type == "function_call_output" and item.call_id and turn_id:
            return [OutputSeen(CallKey(self.session_id, turn_id, item.call_id))]
        if item.type == "function_call" and item.name in self.asynchronous:
            # The turn goes on without it, so no requires_action may ever come: read the list of required actions.
            return [Fetch("an async function was called")]
        return []

    def _fetched(self, message: Fetched) -> list[Effect]:
        session = message.session
        before = (self.status, self._known)
        self.status, self.status_at = session.status, message.sent_at
        self._known = _identities(session.required_actions)
        self.error = str(session.error) if session.error is not None else None
        if session.agent is not None:
            functions = [tool for tool in session.agent.tools if tool.type == "function" and tool.name]
            self.declared = frozenset(tool.name for tool in functions if tool.name)
            self.asynchronous = frozenset(tool.name for tool in functions if tool.name and tool.is_async)
        effects: list[Effect] = list(self._other_actions(session.required_actions))
        effects.append(Reconcile(Reading(self._asked(session.required_actions), message.sent_at)))
        if self._silent and before != (self.status, self._known):
            effects.append(ReopenStream())
        self._silent = False
        if session.status in {"idle", "failed"}:
            effects.append(TurnsChanged())
        if session.status == "failed":
            effects.append(StopFollowing("failed", "the session failed"))
        return effects

    def _asked(self, actions: Iterable[RequiredAction]) -> dict[CallKey, Asked]:
        asked: dict[CallKey, Asked] = {}
        for action in actions:
            if action.type == "function_call" and action.turn_id and action.call_id:
                key = CallKey(self.session_id, action.turn_id, action.call_id)
                asked[key] = self._one_asked(key, action)
        self.asked = asked
        return asked

    def _one_asked(self, key: CallKey, action: RequiredAction) -> Asked:
        arguments = bytes(action.arguments)
        before = self.asked.get(key)
        # A turn of many calls repeats its list with every answer; hashing each again would be quadratic.
        known = before is not None and before.arguments == arguments
        return Asked(
            name=action.name or "",
            arguments=arguments,
            arguments_hash=before.arguments_hash if before is not None and known else self._hash(arguments),
            is_async=(action.name or "") in self.asynchronous,
        )

    def _other_actions(self, actions: Iterable[RequiredAction]) -> list[Effect]:
        """Report each kind of action that is not a function call once, for as long as it is listed."""
        kinds = frozenset(action.type for action in actions if action.type != "function_call")
        new = kinds - self.other_actions
        self.other_actions = kinds
        return [ReportAction(kind) for kind in sorted(new)]

    def _seen(self, event_id: str) -> bool:
        if event_id in self._recent:
            return True
        self._recent[event_id] = None
        if len(self._recent) > RECENT_EVENTS:
            self._recent.popitem(last=False)
        return False


def _identities(actions: Iterable[RequiredAction]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (action.turn_id or "", action.call_id or action.request_id or action.environment_id or "") for action in actions
    )


def _stop(status: int) -> StopFollowing:
    if status == 404:
        return StopFollowing("gone", "the server does not know the session (404)")
    return StopFollowing(
        "quarantined",
        f"the server refused our credentials ({status}); results are kept, check the API key",
        lasting=False,
    )
