"""Cut a long reply into messages a platform takes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

BREAKS = ("\n\n", "\n", " ")
"""Where a text may be cut, best first; in the middle of a word only when there is no other place."""


def split(text: str, limit: int, *, size: Callable[[str], int] = len) -> list[str]:
    """Return the text in parts of at most `limit`, none of them blank; only white space at a cut is lost.

    Args:
        text: any text; a blank one has no parts.
        limit: the largest size of a part.
        size: how the platform counts; it must grow with the text.
    """
    parts: list[str] = []
    rest = text.strip("\n")
    while rest.strip():
        cut = _cut(rest, limit, size)
        part, rest = rest[:cut].rstrip(), rest[cut:]
        # The indentation of a line that follows a cut is kept.
        rest = rest.lstrip("\n") if rest.startswith("\n") else rest.removeprefix(" ")
        if part:
            parts.append(part)
    return parts


def clip(text: str, limit: int, *, size: Callable[[str], int] = len) -> str:
    """Return the end of a text that is still growing, as much of it as fits."""
    if size(text) <= limit:
        return text
    reverse = text[::-1]
    return "…" + reverse[: _fitting(reverse, limit - size("…"), size)][::-1]


def _cut(text: str, limit: int, size: Callable[[str], int]) -> int:
    fits = _fitting(text, limit, size)
    if fits == len(text):
        return fits
    for mark in BREAKS:
        # Not in the first half: a part that small would only make more messages.
        place = text.rfind(mark, fits // 2, fits + 1)
        if place > 0:
            return place
    return fits


def _fitting(text: str, limit: int, size: Callable[[str], int]) -> int:
    """Return the length of the longest beginning that fits, at least one character."""
    return max(1, bisect_right(range(1, len(text) + 1), limit, key=lambda length: size(text[:length])))
