"""Reading request bodies: strict JSON, then objects whose every key is accounted for.

An unknown key is a 400 that names its path; a key of a feature this harness lacks is a 400 that names the feature.
Nothing is silently ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from answerback.harness.errors import WireError, invalid, unsupported
from answerback.harness.records import JSON, is_array, is_object

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request (reported by others for the service)."""
MAX_METADATA = (16, 64, 512)
"""Pairs, characters of a key, characters of a value."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(body: bytes, content_type: str | None) -> JSON:
    """Parse a request body as the service does; an empty one and `null` are `{}`.

    Raises:
        WireError: 400 for another content type, malformed JSON, a byte-order mark, lone surrogates, a key given
            twice at any depth, a root that is no object, or too many bytes.
    """
    if not body:
        return {}
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise invalid("expected request with Content-Type: application/json")
    if len(body) > MAX_BODY:
        raise invalid(f"The request body is larger than {MAX_BODY} bytes.")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise invalid("We could not parse the JSON body of your request.") from error
    if value is None:
        return {}
    if not is_object(value):
        raise invalid("The request body must be a JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> JSON:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _Events(msgspec.Struct):
    events: list[msgspec.Raw]


def event_bytes(body: bytes) -> list[bytes]:
    """Cut out the exact bytes of each element of `events`; none when there is no such list."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(body, type=_Events).events]
    except msgspec.DecodeError:
        return []


class Reader:
    """One object of a request, read key by key under its path."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not is_object(value):
            raise invalid(f"{path or 'The request body'} must be an object.", param=path or None)
        self.value = value
        self.path = path

    def __repr__(self) -> str:
        return f"<Reader {self.path or '(root)'} {sorted(self.value)}>"

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def only(self, *known: str) -> None:
        """Refuse any other key by its path."""
        for key in self.value:
            if key not in known:
                raise invalid(f"Unknown parameter: '{self.at(key)}'.", param=self.at(key))

    def has(self, key: str) -> bool:
        """Tell whether a key is there and not null."""
        return self.value.get(key) is not None

    def refuse(self, key: str, feature: str) -> None:
        """Refuse a feature by name when its key is there and neither null, false nor empty."""
        if self.value.get(key):
            raise unsupported(feature, param=self.at(key))

    def wrong(self, key: str, expected: str) -> WireError:
        """Build the refusal of a value of the wrong kind."""
        return invalid(f"Invalid '{self.at(key)}': expected {expected}.", param=self.at(key))

    def missing(self, key: str) -> WireError:
        """Build the refusal of a missing value."""
        return invalid(f"Missing required parameter: '{self.at(key)}'.", param=self.at(key))

    def text(self, key: str) -> str | None:
        """Read an optional string."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def required_text(self, key: str, *, empty: bool = False) -> str:
        """Read a string that must be there."""
        value = self.text(key)
        if value is None:
            raise self.missing(key)
        if not value and not empty:
            raise self.wrong(key, "a string that is not empty")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Read an optional boolean."""
        value = self.value.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "a boolean")
        return value

    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str:
        """Read an optional string that is one of some."""
        value = self.text(key)
        if value is None:
            return default
        if value not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return value

    def child(self, key: str) -> Reader | None:
        """Read an optional object."""
        return Reader(self.value[key], self.at(key)) if self.has(key) else None

    def array(self, key: str) -> list[Any] | None:
        """Read an optional array."""
        value = self.value.get(key)
        if value is None:
            return None
        if not is_array(value):
            raise self.wrong(key, "an array")
        return value

    def children(self, key: str) -> list[Reader]:
        """Read an optional array of objects."""
        return [Reader(entry, f"{self.at(key)}[{n}]") for n, entry in enumerate(self.array(key) or [])]


def read_metadata(reader: Reader) -> dict[str, str]:
    """Read `metadata`: 16 pairs, keys to 64 and values to 512 characters; null is empty."""
    child = reader.child("metadata")
    if child is None:
        return {}
    pairs, key_limit, value_limit = MAX_METADATA
    if len(child.value) > pairs:
        raise invalid(f"'{child.path}' may have at most {pairs} pairs.", param=child.path)
    for key, value in child.value.items():
        if not 1 <= len(key) <= key_limit:
            raise invalid(f"A key of '{child.path}' must have 1 to {key_limit} characters.", param=child.at(key))
        if not isinstance(value, str) or len(value) > value_limit:
            raise child.wrong(key, f"a string of at most {value_limit} characters")
    return dict(child.value)
