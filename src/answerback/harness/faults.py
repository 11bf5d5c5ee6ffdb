"""Fault rules: what goes wrong, where, after how many occasions and how often. Every firing is logged."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from answerback.harness.errors import ScriptError
from answerback.harness.frames import Frame

On: TypeAlias = Literal["stream", "post", "get", "create"]


class Do(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What happens; one kind a rule, with what belongs to it."""

    drop: bool = False
    """Stream: close it in place of the frame."""
    cut: bool = False
    """Stream: send half of the frame and close."""
    lose: bool = False
    """Stream: swallow the frame."""
    duplicate: int = 0
    """Stream: send the frame so many more times. Post: process the request so many more times."""
    swap: bool = False
    """Stream: send the frame after the next one."""
    stall: float = 0.0
    """Seconds without a byte, keep-alive comments included."""
    ping: float = 0.0
    """Stream: seconds with nothing but comments."""
    delay: float = 0.0
    """Seconds the frame or the request is late."""
    status: int | None = None
    """Answer with this status instead; on streams, to the GET."""
    apply: bool = False
    """With `status` or `reset`: whether the server did it though the client never heard."""
    headers: dict[str, str] = {}
    body: dict[str, Any] | None = None
    """With `status`: the response body; an error envelope if None."""
    reset: bool = False
    """Break the connection, without an answer or in the middle of it."""
    unknown_event: bool | str = False
    """Stream: first send an event of a type no client knows (or of this type)."""
    error_frame: bool = False
    """Stream: first send an `error` event."""


FRAME_KINDS = ("drop", "cut", "lose", "swap", "ping", "unknown_event", "error_frame")
STREAM_KINDS = (*FRAME_KINDS, "duplicate", "stall", "delay", "status", "reset")
REQUEST_KINDS = ("stall", "delay", "status", "reset")


class Where(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which occasions count; all that is given must match."""

    session: str | None = None
    event: str | None = None
    """Stream: the frame's type. Post: the type of one of its events."""
    call_id: str | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule: of the occasions `where` names, skip `after`, then do it `times` times.

    `do` and `where` are as in JSON, their keys those of `Do` and `Where`; they are checked when the rule is added.
    """

    on: On
    do: dict[str, Any]
    where: dict[str, Any] = {}
    after: int = 0
    times: int = 1


class _Rule(msgspec.Struct, kw_only=True):
    """A rule with its count."""

    on: On
    do: Do
    where: Where
    after: int
    times: int
    seen: int = 0
    fired: int = 0

    def hit(self) -> bool:
        """Count an occasion and tell whether the rule fires on it."""
        self.seen += 1
        fires = self.after < self.seen <= self.after + self.times
        self.fired += fires
        return fires


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fired."""

    rule: int
    on: str
    kind: str
    session_id: str | None


class FaultRules:
    """The rules of one harness and what they did so far.

    Args:
        noted: called for each firing, to log it.
    """

    def __init__(self, *, noted: Callable[[Firing], None]) -> None:
        self.fired: list[Firing] = []
        self._rules: list[_Rule] = []
        self._noted = noted

    def __repr__(self) -> str:
        return f"<FaultRules {len(self._rules)} rules, {len(self.fired)} fired>"

    @property
    def exhausted(self) -> bool:
        """Whether every rule has fired as often as it was meant to: the faults have stopped."""
        return all(rule.fired >= rule.times for rule in self._rules)

    @property
    def on_streams(self) -> bool:
        """Whether any rule looks at frames, so that streams must be sent frame by frame."""
        return any(rule.on == "stream" for rule in self._rules)

    def add(self, *faults: Fault | Mapping[str, Any]) -> None:
        """Add rules.

        Raises:
            ScriptError: for a rule that is not one, or that asks for something its place cannot do.
        """
        self._rules.extend([_read(fault) for fault in faults])

    def clear(self) -> None:
        """Remove all rules; what fired stays known."""
        self._rules.clear()

    def describe(self) -> list[dict[str, Any]]:
        """List the rules with their counts, as JSON."""
        builtins: list[dict[str, Any]] = [msgspec.to_builtins(rule) for rule in self._rules]
        return builtins

    def frame(self, frame: Frame) -> list[Do]:
        """Return what happens to a frame on its way to one subscriber."""
        doings: list[Do] = []
        for number, rule in enumerate(self._rules):
            if rule.on != "stream" or rule.do.status is not None:
                continue
            where = rule.where
            if where.event is not None and where.event != frame.type:
                continue
            if where.call_id is not None and where.call_id not in frame.call_ids():
                continue
            if self._fires(number, rule, frame.session_id):
                doings.append(rule.do)
        return doings

    def request(
        self, on: On, session_id: str | None, *, events: Sequence[str] = (), call_ids: Iterable[str] = ()
    ) -> Do | None:
        """Return what happens to a request: the first rule that fires; later rules do not count it then."""
        calls = list(call_ids)
        for number, rule in enumerate(self._rules):
            if rule.on != on or (on == "stream" and rule.do.status is None):
                continue
            where = rule.where
            if where.event is not None and where.event not in events:
                continue
            if where.call_id is not None and where.call_id not in calls:
                continue
            if self._fires(number, rule, session_id):
                return rule.do
        return None

    def _fires(self, number: int, rule: _Rule, session_id: str | None) -> bool:
        if rule.where.session is not None and rule.where.session != session_id:
            return False
        if not rule.hit():
            return False
        firing = Firing(rule=number, on=rule.on, kind=_kind(rule.do), session_id=session_id)
        self.fired.append(firing)
        self._noted(firing)
        return True


def read_faults(data: Any) -> list[Fault]:
    """Read a list of rules from parsed JSON or YAML.

    Raises:
        ScriptError: for anything else.
    """
    try:
        faults = msgspec.convert(data, list[Fault])
    except msgspec.ValidationError as error:
        raise ScriptError(f"bad fault rules: {error}") from error
    for fault in faults:
        _read(fault)
    return faults


def seeded_faults(seed: int, *, count: int = 6) -> list[Fault]:
    """Draw a legal schedule: every rule fires a few times and stops, so a client that recovers ends well."""
    rng = random.Random(f"faults/{seed}")
    draws: list[Callable[[], Fault]] = [lambda: _draw_stream(rng), lambda: _draw_post(rng), lambda: _draw_get(rng)]
    return [rng.choice(draws)() for _ in range(count)]


def _draw_stream(rng: random.Random) -> Fault:
    kinds: list[dict[str, Any]] = [
        {"drop": True},
        {"cut": True},
        {"lose": True},
        {"duplicate": rng.randint(1, 2)},
        {"swap": True},
        {"stall": rng.choice((0.05, 1.0, 5.0))},
        {"ping": rng.choice((0.05, 1.0, 5.0))},
        {"delay": rng.choice((0.01, 0.5, 2.0))},
        {"reset": True},
        {"unknown_event": True},
        {"error_frame": True},
        {"status": rng.choice((500, 503))},
    ]
    return Fault(on="stream", do=rng.choice(kinds), after=rng.randint(0, 12), times=rng.randint(1, 3))


def _draw_post(rng: random.Random) -> Fault:
    kinds: list[dict[str, Any]] = [
        {"status": rng.choice((500, 502, 503)), "apply": rng.random() < 0.5},
        {"status": 429, "headers": {"retry-after": "1"}},
        {"reset": True, "apply": rng.random() < 0.5},
        {"delay": rng.choice((0.01, 0.5, 2.0))},
        {"duplicate": 1},
    ]
    return Fault(on="post", do=rng.choice(kinds), after=rng.randint(0, 3), times=rng.randint(1, 2))


def _draw_get(rng: random.Random) -> Fault:
    kinds: list[dict[str, Any]] = [{"status": rng.choice((500, 503))}, {"reset": True}, {"delay": 0.5}]
    return Fault(on="get", do=rng.choice(kinds), after=rng.randint(0, 3), times=rng.randint(1, 2))


def _read(fault: Fault | Mapping[str, Any]) -> _Rule:
    if isinstance(fault, Mapping) and fault.get("on") == "webhook":
        raise ScriptError("faults on webhooks are not supported by this harness")
    try:
        rule = msgspec.convert(fault, Fault) if isinstance(fault, Mapping) else fault
        do, where = msgspec.convert(rule.do, Do), msgspec.convert(rule.where, Where)
    except msgspec.ValidationError as error:
        raise ScriptError(f"bad fault rule: {error}") from error
    kind = _kind(do)
    allowed = {"stream": STREAM_KINDS, "post": (*REQUEST_KINDS, "duplicate")}.get(rule.on, REQUEST_KINDS)
    if kind not in allowed:
        raise ScriptError(f"a fault on {rule.on} does one of {', '.join(allowed)}; this one does {kind or 'nothing'}")
    return _Rule(on=rule.on, do=do, where=where, after=rule.after, times=rule.times)


def _kind(do: Do) -> str:
    """Name what a rule does; the modifiers `apply`, `headers` and `body` are not kinds."""
    return next((name for name in STREAM_KINDS if getattr(do, name)), "")
