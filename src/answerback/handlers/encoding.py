"""Python values as compact JSON text, or a clear refusal. Nothing is changed silently.

The forms of dates, decimals and UUIDs follow what msgspec and pydantic both write: UTC as `Z`, decimals as text.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, cast

import msgspec
import pydantic

from answerback.errors import OutputError

Plain: TypeAlias = "dict[str, Plain] | list[Plain] | str | int | float | bool | None"

_BINARY = (bytes, bytearray, memoryview)
_SCALARS = (dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID)
_TOO_DEEP = "it refers to itself or is nested too deeply"


def json_text(value: object) -> str:
    """Return the compact JSON text of `value`, keys in their own order.

    Raises:
        OutputError: for bytes, numbers that are not finite, half characters (lone surrogates), objects with no JSON
            form, and values that refer to themselves.
    """
    try:
        text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError as error:
        raise OutputError(_TOO_DEEP) from error
    except ValueError as error:
        # The one ValueError left after `plain`: CPython refuses to write integers of more than 4,300 digits.
        raise OutputError("it has an integer with too many digits") from error
    return whole_text(text)


def whole_text(text: str) -> str:
    """Return `text` unchanged.

    Raises:
        OutputError: when it has lone surrogates, which have no UTF-8 form.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OutputError("it has half a character (a lone surrogate), which cannot be sent as UTF-8") from error
    return text


def plain(value: object) -> Plain:
    """Return `value` made of dict, list, str, int, finite float, bool and None only.

    Raises:
        OutputError: as in `json_text`.
        RecursionError: when it refers to itself or is nested too deeply.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return cast("str | int | bool | None", value)
    if kind is dict:
        return _object(cast("dict[object, object]", value))
    if kind is list or kind is tuple:
        return [plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, float):
        return _finite(value)
    return _rich(value)


def _rich(value: object) -> Plain:
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise OutputError("it has a number that is not finite")
        return str(value)
    if isinstance(value, _SCALARS):
        return cast("str", msgspec.to_builtins(value))
    if isinstance(value, pydantic.BaseModel):
        return _dumped(value)
    if isinstance(value, msgspec.Struct):
        return plain(_struct(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return _container(value)


def _container(value: object) -> Plain:
    if isinstance(value, Mapping):
        return _object(cast("Mapping[object, object]", value))
    if isinstance(value, _BINARY):
        raise OutputError("it has bytes; return text, for example base64")
    if isinstance(value, (Sequence, deque)):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, AbstractSet):
        # A set has no order of its own; sorted by their JSON text the bytes are the same every time.
        items = [plain(item) for item in cast("AbstractSet[object]", value)]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    raise OutputError(f"it has a value of type {type(value).__name__}, which has no JSON form")


def _object(value: Mapping[Any, object]) -> dict[str, Plain]:
    result: dict[str, Plain] = {}
    for key, item in value.items():
        name = key if type(key) is str else _key(key)
        if name in result:
            raise OutputError("it has an object with two keys that are the same text")
        result[name] = plain(item)
    return result


def _key(key: object) -> str:
    written = plain(key)
    if isinstance(written, str):
        return written
    if isinstance(written, (dict, list)):
        raise OutputError(f"it has an object with a key of type {type(key).__name__}; use text")
    return json.dumps(written)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise OutputError("it has a number that is not finite (NaN or Infinity)")
    return float(value)


def _dumped(value: pydantic.BaseModel) -> Plain:
    try:
        dumped = value.model_dump(mode="json", by_alias=True, warnings=False)
    except (ValueError, TypeError) as error:
        raise OutputError(f"a {type(value).__name__} could not be written as JSON") from error
    return plain(dumped)


def _struct(value: msgspec.Struct) -> object:
    try:
        return msgspec.to_builtins(value, builtin_types=_BINARY, enc_hook=plain)
    except (ValueError, TypeError) as error:
        raise OutputError(f"a {type(value).__name__} could not be written as JSON") from error
