"""The resources of the Agents API, as much of them as this project reads. Missing keys default, unknown ones pass.

Sources: the generated types of openai 3.57 (`types/beta`); which keys may be missing was seen on real frames.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec


class RequiredAction(msgspec.Struct, frozen=True):
    """One member of `required_actions`; switch on `type`, the other fields belong to some types only."""

    type: str = ""
    turn_id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    """JSON text of an object, or of a string that holds one (both are seen)."""
    request_id: str | None = None
    environment_id: str | None = None


class SessionSnapshot(msgspec.Struct, frozen=True):
    """A session as a stream event carries it, without its agent (which is large and never needed there)."""

    id: str = ""
    status: str = ""
    error: Any = None
    required_actions: list[RequiredAction] = []


class ToolDeclaration(msgspec.Struct, frozen=True):
    """A tool a session declares."""

    type: str = ""
    name: str | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")


class AgentSnapshot(msgspec.Struct, frozen=True):
    """The agent of a session."""

    id: str | None = None
    name: str | None = None
    model: str | None = None
    tools: list[ToolDeclaration] = []


class Session(msgspec.Struct, frozen=True):
    """A session as a retrieve returns it."""

    id: str = ""
    status: str = ""
    error: Any = None
    required_actions: list[RequiredAction] = []
    agent: AgentSnapshot | None = None
    metadata: dict[str, Any] | None = None
    usage: Any = None
    last_active_at: float | None = None
    """Seconds since the epoch, by the server's clock."""

    @property
    def snapshot(self) -> SessionSnapshot:
        """The part of it that stream events carry too."""
        return SessionSnapshot(self.id, self.status, self.error, self.required_actions)


class TurnError(msgspec.Struct, frozen=True):
    """Why a turn failed."""

    code: str | None = None
    message: str | None = None


class Turn(msgspec.Struct, frozen=True):
    """One turn; a root turn has no `subagent_id`."""

    id: str = ""
    status: str = ""
    subagent_id: str | None = None
    error: TurnError | None = None
    usage: Any = None

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in {"completed", "failed", "cancelled"}


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message."""

    type: str = ""
    text: str | None = None


class Item(msgspec.Struct, frozen=True):
    """One item of a turn; switch on `type`."""

    id: str | None = None
    type: str = ""
    turn_id: str | None = None
    status: str | None = None
    role: str | None = None
    phase: str | None = None
    content: list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None

    @property
    def text(self) -> str:
        """The text of a message, its parts joined."""
        return "".join(part.text or "" for part in self.content or [])


RecordT = TypeVar("RecordT")


class Page(msgspec.Struct, Generic[RecordT], frozen=True):
    """One page of a list. `last_id` is the cursor: an item's own id may be null, and is then no cursor."""

    data: list[RecordT] = []
    last_id: str | None = None
    has_more: bool = False
