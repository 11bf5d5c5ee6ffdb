"""What the commands print."""

from __future__ import annotations

import pytest

from answerback.daemon.output import call_facts, payload, print_facts, print_table, stamp
from answerback.model import CallKey, CallRecord


def test_times_are_iso_in_utc_and_missing_ones_are_none() -> None:
    assert stamp(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert stamp(0) is None
    assert stamp(None) is None


def test_values_are_measured_unless_asked_for() -> None:
    key = CallKey("s", "t", "c")
    call = CallRecord(key=key, name="f", arguments=b'{"pin": 4711}', arguments_hash="", outcome=b'"secret"')
    hidden = str(call_facts(call, short="abcdef"))
    assert "4711" not in hidden
    assert "secret" not in hidden
    assert call_facts(call, short="abcdef", values=True)["arguments"] == '{"pin": 4711}'
    assert payload(b"\xff", values=True) == "\ufffd"
    assert payload(None, values=False) is None


def test_columns_are_as_wide_as_their_widest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("long", "x"), ("s", "")])
    assert capsys.readouterr().out == "A     B\nlong  x\ns\n"


def test_an_empty_table_shows_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [])
    assert capsys.readouterr().out == "A  B\n"


def test_facts_leave_out_what_is_not_known_but_keep_a_zero(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"call_id": "c", "outcome": None, "reason": "", "attempt": 0, "active": False})
    assert capsys.readouterr().out == "call id  c\nattempt  0\nactive   False\n"
