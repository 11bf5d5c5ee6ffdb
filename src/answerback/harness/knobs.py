"""What may differ from the default behaviour: one table, which is also the documentation's table.

The default is what was observed of the hosted service. A knob exists where it is uncertain, or where other
implementations differ, so that a test can prove that a client lives with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from answerback.harness.errors import ScriptError


def _meta(section: str, description: str) -> msgspec.Meta:
    """Attach the section of the wire specification and the meaning to a knob."""
    return msgspec.Meta(description=description, extra={"section": section})


class Knobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one harness; every field is a knob, seconds and bytes where a number has a unit."""

    events_status: Annotated[
        Literal[202, 204, 200], _meta("§1", "status of an accepted input: 202 and 204 are empty, 200 is `{}`")
    ] = 202
    admission: Annotated[
        Literal["async", "sync"], _meta("§4.1", "whether an accepted message takes effect after or before its answer")
    ] = "async"
    admission_delay: Annotated[float, _meta("§4.1", "seconds from acceptance to admission when async")] = 0.005
    registration_gap: Annotated[
        float, _meta("§6.2", "seconds between `item.added` of a call and its registration as pending")
    ] = 0.0
    parallel_calls: Annotated[
        Literal["together", "one_by_one"], _meta("§6.3", "one `requires_action` for all calls of a step, or one each")
    ] = "together"
    shrink: Annotated[bool, _meta("§6.3", "`requires_action` again with what is left after each accepted result")] = (
        True
    )
    call_done: Annotated[
        Literal["after_result", "at_call"], _meta("§6.2", "when `item.done` of a function call is sent")
    ] = "after_result"
    resume: Annotated[
        Literal["session", "session_and_turn"],
        _meta("§6.2", "frames after the last awaited result: `session.in_progress`, or `turn.in_progress` as well"),
    ] = "session"
    cancel: Annotated[
        Literal["plain", "interim", "completion_wins"],
        _meta("§6.5", "cancel as observed, with an interim `session.in_progress`, or losing against running output"),
    ] = "plain"
    duplicate_result: Annotated[
        Literal["repeat", "silent"], _meta("§7.1", "whether an identical result announces its output item again")
    ] = "repeat"
    catch_up: Annotated[
        Literal["random", "none", "all"], _meta("§5.3", "items of the running turn a new subscriber is sent")
    ] = "random"
    attach_idle: Annotated[bool, _meta("§5.3", "an initial `session.idle` for who subscribes to an idle session")] = (
        False
    )
    keepalive: Annotated[float, _meta("§5.1", "seconds of silence before a comment is sent on a stream")] = 15.0
    obfuscation: Annotated[bool, _meta("§3.8", "whether frames are padded unless the client says otherwise")] = True
    stream_buffer: Annotated[int, _meta("§5.4", "frames kept for a slow reader before its stream is closed")] = 1024
    idempotency: Annotated[Literal["remember", "forget"], _meta("§7.4", "whether Idempotency-Key is remembered")] = (
        "remember"
    )
    create_key: Annotated[
        Literal["ignore", "honour"], _meta("§7.4", "what Idempotency-Key does when a session is created")
    ] = "ignore"
    usage: Annotated[
        Literal["later", "immediate", "never"],
        _meta("§3.4", "usage 2 s (turn) and 7 s (session) after the end, at once and on the events, or never"),
    ] = "later"
    items_list: Annotated[
        Literal["omit", "include"], _meta("§9", "whether lists leave out items in progress and incomplete ones")
    ] = "omit"
    turn_cursor: Annotated[
        Literal["opaque", "item_id"], _meta("§9", "`last_id` of a turn's items: a cursor of its own, or the item's id")
    ] = "opaque"
    list_lag: Annotated[float, _meta("§2", "seconds before a session or its metadata shows in a filtered list")] = 0.0
    call_ids: Annotated[Literal["plain", "long", "unicode"], _meta("§11", "the form of generated call ids")] = "plain"
    arguments: Annotated[
        Literal["object", "string", "malformed"],
        _meta("§3.2", "function arguments as an object, as a JSON string, or as a string that is not JSON"),
    ] = "object"
    delta_size: Annotated[int, _meta("§6.1", "characters per text delta")] = 24
    delta_delay: Annotated[float, _meta("§6.1", "seconds between text deltas; 0 sends a message in one go")] = 0.0
    max_result_bytes: Annotated[
        int, _meta("§14", "largest accepted `tool_result` element in bytes; 0 leaves it to the request limit")
    ] = 0


def read_knobs(values: Mapping[str, Any]) -> Knobs:
    """Build the knobs from names and values, text values included (as the command line gives them).

    Raises:
        ScriptError: for a name that is no knob, or a value it does not take.
    """
    try:
        return msgspec.convert(dict(values), Knobs, strict=False)
    except msgspec.ValidationError as error:
        raise ScriptError(f"bad knob: {error}; see `knob_table()` for names and values") from error


class KnobRow(msgspec.Struct, frozen=True):
    """One line of the documentation's table."""

    name: str
    type: str
    default: str
    section: str
    meaning: str


def knob_table() -> list[KnobRow]:
    """List every knob with its type, default, section of the wire specification and meaning."""
    rows: list[KnobRow] = []
    info = msgspec.inspect.type_info(Knobs)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        described = field.type
        assert isinstance(described, msgspec.inspect.Metadata)
        # msgspec leaves the two dictionaries without types.
        notes = cast("dict[str, dict[str, str]]", msgspec.structs.asdict(described))
        section, meaning = notes["extra"]["section"], notes["extra_json_schema"]["description"]
        rows.append(KnobRow(field.name, _type_name(described.type), repr(field.default), section, meaning))
    return rows


def _type_name(type: msgspec.inspect.Type) -> str:  # noqa: A002 - it is one
    if isinstance(type, msgspec.inspect.LiteralType):
        return " | ".join(str(value) for value in type.values)
    names = {msgspec.inspect.FloatType: "seconds", msgspec.inspect.IntType: "number", msgspec.inspect.BoolType: "bool"}
    return next((name for kind, name in names.items() if isinstance(type, kind)), "text")
