"""What the harness keeps of a session: the records its state is made of, and what is written to disk.

They are mutable on purpose: `SessionState` is their only owner, and what leaves it are dictionaries built for the
occasion.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeGuard

import msgspec

JSON: TypeAlias = dict[str, Any]


def is_object(value: Any) -> TypeGuard[JSON]:
    """Tell whether a parsed JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Tell whether a parsed JSON value is an array."""
    return isinstance(value, list)


TurnStatus: TypeAlias = Literal["queued", "in_progress", "waiting", "completed", "failed", "cancelled"]
TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class Session(msgspec.Struct, kw_only=True):
    """One session; its turns, items and calls are records of their own."""

    id: str
    number: int
    """Order of creation in this harness; lists are sorted by it."""
    agent: JSON
    environment: JSON
    created_at: int
    last_active_at: int
    metadata: dict[str, str]
    listed_at: float
    """When its metadata shows in filtered lists."""
    vault_ids: list[str]
    prompt_cache_options: JSON | None = None
    error: str | None = None
    failed: bool = False
    active_turn: str | None = None
    initial_pending: bool = False
    """Accepted with input that is not admitted yet; other inputs are refused until it is."""
    inbox: list[list[JSON]] = []
    """Accepted messages that are not admitted yet, in order."""


class Turn(msgspec.Struct, kw_only=True):
    """One root turn, with what its run needs to go on after a restart."""

    id: str
    session_id: str
    agent_id: str
    number: int
    """1 for the first turn of the session."""
    status: TurnStatus
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    error: JSON | None = None
    prompt_cache_options: JSON | None = None
    input: str = ""
    """The newest user text, which a steering message replaces."""
    cursor: int = 0
    """How many steps of the model are done."""
    memory: JSON = {}
    """What the model wants to find again after a restart."""
    next_index: int = 0
    """The next `output_index`."""
    input_chars: int = 0
    output_chars: int = 0


class Item(msgspec.Struct, kw_only=True):
    """One item of a session; `body` is its wire form and is replaced, never changed in place."""

    id: str
    session_id: str
    turn_id: str
    number: int
    step: int
    """The step of the turn that made it; -1 for what the client sent."""
    output_index: int | None
    body: JSON


class Call(msgspec.Struct, kw_only=True):
    """One function call and what became of it."""

    session_id: str
    turn_id: str
    call_id: str
    name: str
    arguments: Any
    item_id: str
    step: int
    blocking: bool
    """False for functions declared `async`: the turn goes on without their result."""
    state: Literal["announced", "pending", "answered", "abandoned", "refused"]
    """refused: the session has no such function, so the model saw an error and the client nothing to answer."""
    result: JSON | None = None
    """`success`, `output` and `error` as accepted; never replaced."""
    output_item_id: str | None = None


class KeyUse(msgspec.Struct, kw_only=True):
    """An Idempotency-Key that was accepted, and the body it came with."""

    session_id: str
    key: str
    body_sha256: str


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted or refused input, as the client sent it and as it was answered.

    A POST of several events makes one entry per event, all with the same `request`. `body` is the exact text of the
    event's element (of the whole request for other kinds), so the bytes of a resent result can be compared.
    """

    seq: int
    t: float
    """Unix seconds on the harness clock."""
    session_id: str | None
    kind: str
    """message, cancel, tool_result, other, empty; create, update, delete; fault for a rule that fired."""
    status: int
    """The HTTP status the client was told; 0 when the connection was reset instead."""
    idempotency_key: str | None
    body: str
    body_sha256: str
    """Of the whole request body."""
    effect: bool
    """Whether it changed anything: false for refusals and repeats."""
    request: int = 0
    """Which request it came with; the same number for all events of one POST."""
    element_sha256: str | None = None
    """Of the element's exact bytes."""
    turn_id: str | None = None
    call_id: str | None = None
    code: str | None = None
    """`error.code` of a refusal."""
