"""Decode what a server sent, half characters and all.

msgspec refuses a whole document for one lone surrogate (an escape of half a character) or one NaN anywhere in it, also
in a member nobody reads. A model can write the first into its text or its arguments, and a session that holds one would
then never be readable again. Python's own decoder takes both, so what msgspec refuses is read once more with it.
"""

from __future__ import annotations

import json
from typing import TypeVar, cast

import msgspec

_RAW = frozenset({"arguments", "output"})
"""Members kept as JSON text by the records."""

RecordT = TypeVar("RecordT")


def decode_record(content: bytes, kind: type[RecordT]) -> RecordT:
    """Decode one JSON document as a record of `records` or `events`.

    Raises:
        msgspec.ValidationError: it is JSON, but not of this shape.
        msgspec.DecodeError: it is no JSON.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        document = json.loads(content)
        return msgspec.convert(_with_raw(document), kind)
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError):
        raise msgspec.DecodeError("what the server sent is no JSON") from None


def _with_raw(value: object) -> object:
    """Put the text back where the records keep text; ASCII, so that half characters stay the escapes they were."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {
            name: msgspec.Raw(json.dumps(member).encode()) if name in _RAW else _with_raw(member)
            for name, member in members.items()
        }
    if isinstance(value, list):
        return [_with_raw(member) for member in cast("list[object]", value)]
    return value
