"""Content parts as a handler's result: text and images beside each other.

The Agents API takes two kinds in a tool result, `{"type": "input_text", "text"}` and
`{"type": "input_image", "image_url"}`, with no other keys. Parts that are almost right are refused by name: sent as
JSON text, the model would read an image as letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from answerback.errors import OutputError
from answerback.handlers.encoding import whole_text
from answerback.model import OutputPart

_CONTENT = {"input_text": "text", "input_image": "image_url"}


def content_parts(value: object) -> tuple[OutputPart, ...] | None:
    """Return the parts when `value` is a list of them, None when it is an ordinary value.

    Raises:
        OutputError: when some elements are parts and others are not, or a part has a wrong shape.
    """
    if _claims_to_be_part(value):
        raise OutputError("a content part stands alone; return a list of parts")
    if not isinstance(value, (list, tuple)):
        return None
    elements = cast("Sequence[object]", value)
    if not any(_claims_to_be_part(element) for element in elements):
        return None
    return tuple(_checked(element, index) for index, element in enumerate(elements))


def _claims_to_be_part(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    kind = cast("dict[object, object]", value).get("type")
    return isinstance(kind, str) and kind.startswith("input_")


def _checked(element: object, index: int) -> OutputPart:
    if not _claims_to_be_part(element):
        raise OutputError(f"element {index} is not a content part, but others are; use parts only")
    part = cast("dict[str, Any]", element)
    kind = part["type"]
    if kind not in _CONTENT:
        raise OutputError(f"part {index} is of type {_named(kind)}; a result takes input_text and input_image")
    content = _CONTENT[kind]
    extra = sorted(str(key) for key in part.keys() - {"type", content})
    if extra:
        raise OutputError(f"part {index} ({kind}) has keys the API does not take: {', '.join(map(_named, extra[:5]))}")
    if not isinstance(part.get(content), str) or not part[content]:
        raise OutputError(f"part {index} ({kind}) needs a non-empty string {content!r}")
    return {"type": kind, content: whole_text(part[content])}


def _named(text: str) -> str:
    return repr(text[:40])
