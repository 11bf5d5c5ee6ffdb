"""What became of a stored result that is no longer required: the turn's items tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from answerback.model import CallRecord, CallState
from answerback.wire.decoding import decode_record
from answerback.wire.records import Item


def settled_as(record: CallRecord, items: Sequence[Item]) -> tuple[CallState, str]:
    """Return where the call ends, and why.

    ACKED when the items show our output, SUPERSEDED when they show another one, OBSOLETE when they show none (the
    turn ended first). The bytes are kept in every case.
    """
    shown = [item for item in items if item.type == "function_call_output" and item.call_id == record.key.call_id]
    if not shown:
        return CallState.OBSOLETE, "its turn ended before the result was taken"
    if any(_same(record, item) for item in shown):
        return CallState.ACKED, "the turn's items show our output"
    return CallState.SUPERSEDED, "the turn's items show another output"


def _same(record: CallRecord, item: Item) -> bool:
    """Compare by value: items are the server's own encoding, and a failed result's output is shown as null."""
    sent: dict[str, Any] = msgspec.json.decode(record.payload or b"{}")
    if not sent.get("success"):
        return bool(item.error == sent.get("error"))
    try:
        shown: object = decode_record(bytes(item.output), object)
    except msgspec.MsgspecError:
        # Something no client of ours could have sent.
        return False
    return bool(item.error is None and shown == sent.get("output"))
