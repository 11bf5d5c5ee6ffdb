"""The gate before a call that needs a person's yes: asked once, durably, bound to the arguments it was asked with."""

from __future__ import annotations

import logging
from typing import Any, Literal, TypeAlias

from answerback.actors.job import Job, log_ids
from answerback.handlers.arguments import BoundArguments
from answerback.handlers.context import ToolContext
from answerback.handlers.tool import Tool
from answerback.model import ApprovalRecord, CallRecord
from answerback.store.base import Store

logger = logging.getLogger("answerback.approvals")

Passage: TypeAlias = Literal["free", "approved", "waiting"]
"""What the gate says: no approval is needed, it was given for these arguments, or somebody has been asked."""


def given(record: CallRecord, approval: ApprovalRecord | None) -> bool:
    """Whether this call, with these arguments, was approved."""
    return approval is not None and approval.verdict == "approved" and approval.digest == record.arguments_hash


async def gate(
    store: Store, job: Job, tool: Tool[..., Any], bound: BoundArguments, context: ToolContext[Any]
) -> Passage:
    """Let a call pass, or store that a person is asked about it. Nothing expires by itself."""
    record = job.journal.get(job.key)
    assert record is not None
    if not await tool.wants_approval(context, bound):
        return "free"
    if given(record, await store.approval(job.key)):
        return "approved"
    await job.journal.ask_approval(job.key)
    logger.warning(
        "a call needs an approval: answerback approve %s, or answerback reject %s",
        record.public_id[:12],
        record.public_id[:12],
        extra={**log_ids(job.key), "tool": tool.name},
    )
    return "waiting"
