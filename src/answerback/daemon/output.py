"""How the commands print: aligned columns for people, one JSON document for programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from answerback.model import CallRecord, LateRecord, SessionRecord, TransitionRecord


def print_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line, at once: whoever reads a stream of them waits for the line's end."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: dict[str, Any]) -> None:
    """Print the facts that are known, one a line."""
    known = {name: value for name, value in facts.items() if value not in (None, "")}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        click.echo(f"{name.replace('_', ' ').ljust(width)}  {value}")


def stamp(microseconds: int | None) -> str | None:
    """Return a time of a record as ISO 8601 in UTC, or None where there is none."""
    if not microseconds:
        return None
    moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload(content: bytes | None, *, values: bool) -> Any:
    """Return bytes of a record as a person may see them: the text if asked for, else size and hash."""
    if content is None:
        return None
    if not content:
        # An input that travelled in the creation of its session has no element of its own.
        return "sent with the creation"
    if values:
        return content.decode("utf-8", "replace")
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def call_facts(call: CallRecord, *, short: str, values: bool = False) -> dict[str, Any]:
    """Return everything known of a call, ready for JSON."""
    return {
        "id": short,
        "hash": call.public_id,
        "session_id": call.key.session_id,
        "turn_id": call.key.turn_id,
        "call_id": call.key.call_id,
        "name": call.name,
        "state": call.state.value,
        "effects": call.effects,
        "attempt": call.attempt,
        "crashes": call.crash_count,
        "outcome": call.outcome_kind,
        "submit_status": call.submit_status,
        "submit_epoch": call.submit_epoch,
        "reason": call.reason,
        "observed_at": stamp(call.observed_at),
        "started_at": stamp(call.started_at),
        "finished_at": stamp(call.finished_at),
        "submitted_at": stamp(call.submitted_at),
        "closed_at": stamp(call.closed_at),
        "deadline": stamp(call.deadline),
        "next_at": stamp(call.next_at),
        "hold_until": stamp(call.hold_until),
        "arguments": payload(call.arguments, values=values),
        "result": payload(call.outcome, values=values),
        "substitute": payload(call.substitute, values=values),
    }


def session_facts(session: SessionRecord) -> dict[str, Any]:
    """Return everything known of a session, ready for JSON."""
    return {
        "session_id": session.session_id,
        "local_id": session.local_id,
        "key": session.key,
        "origin": session.origin,
        "state": session.state,
        "status": session.status,
        "active": session.active,
        "last_turn_id": session.last_turn_id,
        "reason": session.reason,
        "created_at": stamp(session.created_at),
        "updated_at": stamp(session.updated_at),
    }


def transition_facts(step: TransitionRecord) -> dict[str, Any]:
    """Return one step of a call's life, ready for JSON."""
    return {
        "at": stamp(step.at),
        "source": step.source,
        "target": step.target,
        "attempt": step.attempt,
        "incarnation": step.incarnation,
        "pid": step.pid,
        "reason": step.reason,
    }


def late_facts(late: LateRecord, *, values: bool) -> dict[str, Any]:
    """Return what a handler returned too late, ready for JSON."""
    return {
        "at": stamp(late.at),
        "attempt": late.attempt,
        "outcome": late.kind,
        "result": payload(late.element, values=values),
    }
