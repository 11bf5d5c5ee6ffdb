"""What a person types to name a call, and what is printed for one: the start of its public id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from answerback.errors import UnknownCallError
from answerback.model import CallRecord

SHORTEST_ID = 6
"""Public call ids have at least this many hex digits, so that one word of them is never mistaken for a number."""


class CallFinder(Protocol):
    """The one read that names need."""

    async def find_calls(self, prefix: str) -> list[CallRecord]:
        """Return up to ten calls whose public id starts with `prefix` or whose call_id equals it."""
        ...


async def find_call(store: CallFinder, text: str) -> CallRecord:
    """Return the one call named by a prefix of its public id or by its call_id.

    Raises:
        UnknownCallError: no call has this name, or several do; the text lists the candidates.
    """
    found = await store.find_calls(text) or await store.find_calls(text.lower())
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownCallError(f"No call is named {text!r}. `answerback calls` lists their ids.")
    names = await short_ids(store, found)
    listed = ", ".join(f"{name} ({call.name}, {call.key})" for name, call in zip(names, found, strict=True))
    raise UnknownCallError(f"{text!r} names several calls: {listed}.")


async def short_ids(store: CallFinder, calls: Sequence[CallRecord]) -> list[str]:
    """Return the shortest prefix of each call's public id that names no other call of the store."""
    return [await _short_id(store, call.public_id) for call in calls]


async def _short_id(store: CallFinder, digest: str) -> str:
    length = SHORTEST_ID
    while length < len(digest):
        rivals = [other.public_id for other in await store.find_calls(digest[:length]) if other.public_id != digest]
        if not rivals:
            break
        # `find_calls` shows ten at most, so the length that tells these apart is asked again until nobody is left.
        length = max([length, *(_shared(digest, rival) for rival in rivals)]) + 1
    return digest[:length]


def _shared(one: str, other: str) -> int:
    """Return how many leading characters two different texts of one length share."""
    return next(place for place, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs)
