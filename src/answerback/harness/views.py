"""Wire objects made from records: every key present, null where the service has nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

from answerback.harness.knobs import Knobs
from answerback.harness.records import JSON, TERMINAL, Call, Item, Session, Turn

TURN_USAGE_DELAY = 2.0
"""Seconds after its end when a turn's usage is known (observed)."""
SESSION_USAGE_DELAY = 7.0
"""Seconds after the last turn's end when the session's usage is known (observed)."""
CHARS_PER_TOKEN = 4
"""The scripted model has no tokenizer; usage is an estimate, as it is only ever best effort."""


def session_object(
    session: Session, *, status: str, required: Sequence[Call], turns: Sequence[Turn], now: float, knobs: Knobs
) -> JSON:
    """Build the session as a retrieve and every session event show it."""
    body: JSON = {
        "id": session.id,
        "object": "agent.session",
        "created_at": session.created_at,
        "last_active_at": session.last_active_at,
        "agent": session.agent,
        "environment": session.environment,
        "status": status,
        "error": session.error,
        "required_actions": [required_action(call) for call in required],
        "metadata": session.metadata,
        "usage": session_usage(turns, now=now, knobs=knobs),
        "vault_ids": session.vault_ids,
    }
    if session.prompt_cache_options is not None:
        body["prompt_cache_options"] = session.prompt_cache_options
    return body


def required_action(call: Call) -> JSON:
    """Build the action that asks for a function's result."""
    return {
        "type": "function_call",
        "turn_id": call.turn_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def turn_object(turn: Turn, *, now: float, knobs: Knobs) -> JSON:
    """Build the turn as a retrieve and every turn event show it."""
    body: JSON = {
        "id": turn.id,
        "object": "agent.session.turn",
        "session_id": turn.session_id,
        "agent_id": turn.agent_id,
        "subagent_id": None,
        "status": turn.status,
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "completed_at": turn.completed_at,
        "error": turn.error,
        "usage": turn_usage(turn, now=now, knobs=knobs, delay=TURN_USAGE_DELAY),
    }
    if turn.prompt_cache_options is not None:
        body["prompt_cache_options"] = turn.prompt_cache_options
    return body


def turn_usage(turn: Turn, *, now: float, knobs: Knobs, delay: float) -> JSON | None:
    """Estimate the tokens of a completed turn; None while unknown, and for ever when it did not complete."""
    if turn.status != "completed" or turn.completed_at is None or knobs.usage == "never":
        return None
    if knobs.usage == "later" and now < turn.completed_at + delay:
        return None
    return _usage(turn.input_chars, turn.output_chars)


def session_usage(turns: Sequence[Turn], *, now: float, knobs: Knobs) -> JSON | None:
    """Sum the root turns' usage, only while all of them are over and known."""
    if not turns or turns[-1].status not in TERMINAL:
        return None
    known = [turn_usage(turn, now=now, knobs=knobs, delay=SESSION_USAGE_DELAY) for turn in turns]
    if any(usage is None for usage in known):
        return None
    return _usage(sum(turn.input_chars for turn in turns), sum(turn.output_chars for turn in turns))


def _usage(input_chars: int, output_chars: int) -> JSON:
    tokens_in, tokens_out = input_chars // CHARS_PER_TOKEN + 1, output_chars // CHARS_PER_TOKEN + 1
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens_in + tokens_out,
    }


def listed_items(items: Sequence[Item], *, knobs: Knobs) -> list[JSON]:
    """Build the items as lists show them.

    Output still in progress or left incomplete is omitted, so a pending call is not there though it is required;
    and the output of a failed result is null though its live event carried it (both observed).
    """
    listed: list[JSON] = []
    for item in items:
        body = item.body
        if knobs.items_list == "omit" and body.get("status") in ("in_progress", "incomplete"):
            continue
        if body["type"] == "function_call_output" and body["status"] == "failed" and body["output"] is not None:
            body = {**body, "output": None}
        listed.append(body)
    return listed
