"""A call whose outcome retention took is never mistaken for one that never ran."""

from __future__ import annotations

import pytest

from answerback.actors.messages import Reading
from answerback.actors.reconcile import Context, Entry, Reopen, Rules, reconcile
from answerback.model import CallState
from unit.actors.rows import SECOND, asked, key, row


@pytest.mark.parametrize("state", [CallState.ACKED, CallState.SUPERSEDED, CallState.FINISHED, CallState.SUBMITTED])
def test_a_listed_call_without_its_result_is_decided_and_not_run_again(state: CallState) -> None:
    record = row(state, outcome=None, arguments=b"")
    context = Context(
        running=frozenset(), incarnation=9, complete=True, now=10**6 * SECOND, rules=lambda _: Rules(effects="once")
    )
    reading = Reading({key(): asked()}, sent_at=2)
    assert reconcile(reading, {key(): Entry(record, touched=1)}, context) == [Reopen(key(), CallState.INDETERMINATE)]
