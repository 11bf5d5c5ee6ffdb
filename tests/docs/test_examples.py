"""The examples run as they are, and keep what they promise when they are killed."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from example_run import EXAMPLES, PATIENCE, finish, kill_after, local_api, start

EMBED = EXAMPLES / "embed.py"
REFUNDS = EXAMPLES / "refunds.py"


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _ledger(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(folder / "ledger.jsonl")]


def test_embed_refunds_the_order_prints_the_answer_and_keeps_its_files_where_it_is_told(tmp_path: Path) -> None:
    with local_api() as api:
        printed = finish(start(EMBED, tmp_path, api, BANK_LEDGER="bank.jsonl", CALLS_DB="journal.db"))
    assert printed == "Order 7 is refunded: rf_1.\n"
    (paid,) = _lines(tmp_path / "bank.jsonl")
    assert json.loads(paid)["cents"] == 1250
    assert (tmp_path / "journal.db").exists()
    assert not (tmp_path / "calls.db").exists()


def test_embed_run_again_finds_its_session_and_asks_for_nothing_twice(tmp_path: Path) -> None:
    with local_api() as api:
        first, second = finish(start(EMBED, tmp_path, api)), finish(start(EMBED, tmp_path, api))
        sessions = api.sessions()
    assert first == second
    assert len(sessions) == 1
    assert len(sessions[0]["turns"]) == 1
    assert len(_ledger(tmp_path)) == 1


def _killed_at_random(folder: Path, rounds: int, *, seed: int) -> list[int]:
    """Return the number of refunds after each round of: run, kill after a random time, run to the end."""
    rng = random.Random(seed)
    refunds: list[int] = []
    with local_api() as api:
        for number in range(rounds):
            place = folder / str(number)
            place.mkdir()
            kill_after(start(EMBED, place, api), rng.uniform(0.5, 4.0))
            assert finish(start(EMBED, place, api)) != ""
            refunds.append(len(_ledger(place)))
    return refunds


def test_embed_killed_at_some_moments_ends_with_one_refund_each(tmp_path: Path) -> None:
    assert _killed_at_random(tmp_path, 3, seed=1) == [1] * 3


@pytest.mark.full
def test_embed_killed_at_twenty_random_moments_ends_with_one_refund_each(tmp_path: Path) -> None:
    assert _killed_at_random(tmp_path, 20, seed=2) == [1] * 20


def _wait_for_line(file: Path, process: subprocess.Popen[str]) -> None:
    """Return when the file has a line; the process is not waited for longer than a test may take."""
    for _ in range(int(PATIENCE / 0.01)):
        if _lines(file):
            return
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"the example ended before it wrote {file.name}")
    pytest.fail(f"nothing was written to {file.name}")


def test_embed_killed_right_after_the_bank_paid_asks_the_bank_and_pays_no_second_time(tmp_path: Path) -> None:
    with local_api() as api:
        process = start(EMBED, tmp_path, api)
        _wait_for_line(tmp_path / "ledger.jsonl", process)
        kill_after(process, 0)
        assert finish(start(EMBED, tmp_path, api)) == "Order 7 is refunded: rf_1.\n"
    assert len(_ledger(tmp_path)) == 1


def test_refunds_answers_seven_calls_and_passes_on_the_one_error_meant_for_the_model(tmp_path: Path) -> None:
    with local_api() as api:
        printed = finish(start(REFUNDS, tmp_path, api)).splitlines()
    assert [line.split()[1:] for line in printed[:-1]] == [
        ["get_order", "ok"],
        ["get_order", "ok"],
        ["get_order", "failed"],
        ["refund", "ok"],
        ["refund", "ok"],
        ["post_letter", "ok"],
        ["post_letter", "ok"],
    ]
    assert printed[-1].startswith("Refunded: rf_")
    assert printed[-1].endswith(" There is no order A-19.")
    assert sorted(line["order_id"] for line in _ledger(tmp_path)) == ["A-17", "A-18"]
    assert sorted(_lines(tmp_path / "letters.txt")) == ["A-17", "A-18"]


def _answer_the_clerk(process: subprocess.Popen[str], posted: list[str]) -> list[str]:
    """Answer each question by the truth; return the orders asked about, when nothing more is asked."""
    assert process.stdout is not None
    assert process.stdin is not None
    asked: list[str] = []
    for line in process.stdout:
        if line.endswith("posted? [y/n]\n"):
            order_id = line.split()[-3]
            asked.append(order_id)
            process.stdin.write("y\n" if order_id in posted else "n\n")
            process.stdin.flush()
    return asked


def test_refunds_holds_the_letters_that_were_cut_short_until_the_clerk_says(tmp_path: Path) -> None:
    letters = tmp_path / "letters.txt"
    with local_api() as api:
        process = start(REFUNDS, tmp_path, api)
        _wait_for_line(letters, process)
        kill_after(process, 0)
        posted = _lines(letters)
        again = start(REFUNDS, tmp_path, api, PYTHONUNBUFFERED="1")
        asked = _answer_the_clerk(again, posted)
        finish(again)
    assert set(posted) <= set(asked)
    # What was posted was not posted again; a letter the kill came before is posted now.
    assert sorted(_lines(letters)) == ["A-17", "A-18"]
    assert sorted(line["order_id"] for line in _ledger(tmp_path)) == ["A-17", "A-18"]
