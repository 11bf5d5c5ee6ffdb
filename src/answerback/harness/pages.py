"""Lists in pages: cursor, limit and order, in the envelope the service uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from starlette.datastructures import QueryParams

from answerback.harness.errors import WireError, invalid
from answerback.harness.records import JSON

PAGE_KEYS = ("after", "limit", "order")


class PageQuery(msgspec.Struct, frozen=True):
    """Where a page starts, how long it is and which way it goes."""

    after: str | None
    limit: int
    ascending: bool


def read_page_query(query: QueryParams, *, strict_limit: bool) -> PageQuery:
    """Read the paging parameters.

    Args:
        query: the query of the request.
        strict_limit: whether a limit outside 1 to 100 is refused; else it is clamped (observed to differ by list).

    Raises:
        WireError: 400 for values that are none.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("Invalid 'order': expected asc or desc.", param="order")
    given = query.get("limit", "20")
    try:
        limit = int(given)
    except ValueError as error:
        raise invalid("Invalid 'limit': expected an integer.", param="limit") from error
    if strict_limit and not 1 <= limit <= 100:
        raise invalid("Invalid 'limit': expected an integer from 1 to 100.", param="limit")
    return PageQuery(query.get("after"), min(max(limit, 1), 100), order == "asc")


def page(
    objects: Sequence[JSON], query: PageQuery, *, bad_cursor: WireError, cursor: Callable[[str], str] | None = None
) -> JSON:
    """Cut one page out of objects in creation order.

    Args:
        objects: all of them, oldest first.
        query: the paging parameters.
        bad_cursor: raised when `after` names none of them.
        cursor: makes `last_id` from the last object's id, where it differs from it; ids are accepted as well.
    """
    ordered = list(objects) if query.ascending else list(reversed(objects))
    start = 0
    if query.after is not None:
        ids = [entry["id"] for entry in ordered]
        cursors = ids if cursor is None else [cursor(entry_id) for entry_id in ids]
        known = {**dict(zip(cursors, range(len(ids)), strict=True)), **dict(zip(ids, range(len(ids)), strict=True))}
        if query.after not in known:
            raise bad_cursor
        start = known[query.after] + 1
    data = ordered[start : start + query.limit]
    last = data[-1]["id"] if data else None
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": cursor(last) if cursor is not None and last is not None else last,
        "has_more": start + query.limit < len(ordered),
    }
