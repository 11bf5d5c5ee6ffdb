"""`answerback demo`: it measures what it prints, fails when an order is paid twice, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from click.testing import CliRunner

from answerback.daemon.commands import demo
from answerback.daemon.demo import play as playing
from answerback.daemon.demo.bank import Bank, Ledger, Refund, count
from answerback.daemon.demo.facts import After, Before, CallFact, Helper, Report
from answerback.daemon.demo.picture import Picture
from answerback.daemon.demo.process import DemoError, run_worker
from answerback.daemon.exits import NOT_STARTED, exit_code
from answerback.errors import ConfigurationError

COMMAND = (sys.executable, "-m", "answerback", "demo")
PATIENCE = 120.0


def _report(*, refunds: int = 2, status: str = "completed") -> Report:
    calls = [
        CallFact(name="get_customer", subject="c-1", seconds=0.3, stored=True, accepted=True),
        CallFact(name="refund", subject="A-17", seconds=0.6, stored=True, accepted=False),
        CallFact(name="refund", subject="A-18", seconds=None, stored=False, accepted=False),
    ]
    after = After(
        pid=12, reconciled_ms=18.4, resent=1, same_bytes=True, rerun=[], verified="rf_902", status=status, text="Paid."
    )
    return Report(
        folder="/somewhere",
        seconds=20.0,
        before=Before(pid=11, calls=calls),
        after=after,
        ledger=Ledger(orders=2, refunds=refunds),
        helper=Helper(openai="3.57.0", pids=(13, 14), ledger=Ledger(orders=2, refunds=4)),
    )


def _invoke(monkeypatch: pytest.MonkeyPatch, report: Report, *options: str) -> tuple[int, str]:
    folders: list[Path] = []

    async def play(folder: Path, **_: Any) -> Report:
        folders.append(folder)
        assert folder.is_dir()
        return report

    monkeypatch.setattr(playing, "play", play)
    result = CliRunner().invoke(demo.command, options)
    assert folders[0].exists() is ("--keep" in options)
    return result.exit_code, result.output


def test_it_plays_to_the_end_and_pays_every_order_once() -> None:
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert found["ledger"] == {"orders": 2, "refunds": 2, "duplicates": 0}
    before = {call["subject"]: call for call in found["before"]["calls"]}
    assert sorted(before) == ["A-17", "A-18", "c-1", "c-2", "c-3"]
    assert (before["A-17"]["stored"], before["A-17"]["accepted"]) == (True, False)
    assert (before["A-18"]["stored"], before["A-18"]["seconds"]) == (False, None)
    after = found["after"]
    assert (after["resent"], after["same_bytes"], after["rerun"]) == (1, True, [])
    assert after["verified"] in after["text"]
    # The helper's own count is whatever it is; it did ask again, so both orders are in its ledger.
    assert found["helper"]["ledger"]["orders"] == 2


@pytest.mark.parametrize(
    ("options", "refunds", "code"), [((), 2, 0), ((), 3, 1), (("--json",), 3, 1), (("--keep",), 2, 0)]
)
def test_it_exits_1_when_an_order_was_paid_twice(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], refunds: int, code: int
) -> None:
    assert _invoke(monkeypatch, _report(refunds=refunds), *options)[0] == code


def test_it_exits_1_when_the_turn_did_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _invoke(monkeypatch, _report(status="failed"))[0] == 1


def test_json_has_every_measured_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(_invoke(monkeypatch, _report(), "--json")[1])
    assert found["after"]["reconciled_ms"] == 18.4
    assert found["helper"]["ledger"] == {"orders": 2, "refunds": 4, "duplicates": 2}
    assert found["folder"] is None


def _draw(report: Report) -> None:
    picture = Picture()
    picture.calls(report.before)
    picture.kill(report.before)
    picture.restart(report.after)
    picture.done(report.after)
    picture.ours(report.ledger)
    picture.helper(report.helper)


def test_the_picture_says_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    _draw(_report())
    printed = capsys.readouterr().out
    assert re.search(r"get_customer +c-1 +▕████▏ +0\.30 s +stored ✓ +accepted ✓", printed)
    assert re.search(r"refund +A-17 +▕████████▏ +0\.60 s +stored ✓ +accepted –", printed)  # noqa: RUF001 - as drawn
    assert re.search(r"refund +A-18 +▕█+··· running", printed)
    assert "worker 11 died" in printed
    assert "worker 12 · reconciled 1 session in 18 ms" in printed
    assert "orders 2 · refunds executed 2 · duplicates 0" in printed
    assert "orders 2 · refunds executed 4 · duplicates 2" in printed
    assert "\x1b" not in printed


def test_the_picture_is_plain_where_the_output_cannot_write_its_signs() -> None:
    code = "from answerback.daemon.demo.picture import Picture; Picture().step('①', 'a', 'b → c ✓')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "  1 a         b -> c yes\n"


CHANGES: list[dict[str, Any]] = [
    {"resent": 0},
    {"same_bytes": False},
    {"rerun": ["A-17", "A-18"]},
    {"verified": None},
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_picture_hides_nothing_that_went_wrong(capsys: pytest.CaptureFixture[str], change: dict[str, Any]) -> None:
    good = _report().after
    Picture().restart(good)
    said = capsys.readouterr().out
    Picture().restart(msgspec.structs.replace(good, **change))
    assert capsys.readouterr().out != said


async def test_the_bank_pays_whoever_asks_and_finds_by_key(tmp_path: Path) -> None:
    bank = Bank(tmp_path / "ledger", seconds=0)
    first = await bank.refund("A-1", 5, idempotency_key="k")
    await bank.refund("A-1", 5)
    assert count(bank.refunds()) == Ledger(orders=1, refunds=2)
    assert count(bank.refunds()).duplicates == 1
    assert await bank.find("k") == Refund(first, "A-1", 5, "k")
    assert await bank.find("other") is None


async def test_a_line_that_is_still_being_written_is_not_paid(tmp_path: Path) -> None:
    bank = Bank(tmp_path / "ledger", seconds=0)
    await bank.refund("A-1", 5)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b'{"id": "rf_9')
    assert len(bank.refunds()) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_worker_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(DemoError, match="required: --base-url"):
        async with run_worker(tmp_path, ["--hold", "x"]) as worker:
            await worker.until("started")


def test_no_folder_for_temporary_files_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdtemp(**_: Any) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    result = CliRunner().invoke(demo.command)
    assert isinstance(result.exception, ConfigurationError)
    assert exit_code(result.exception) == NOT_STARTED
    assert "TMPDIR" in str(result.exception)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_port_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_harness(*_: Any, **__: Any) -> None:
        raise ConfigurationError("cannot listen") from OSError(99, "no such address")

    monkeypatch.setattr(playing, "run_harness", run_harness)
    with pytest.raises(ConfigurationError, match="got no port") as caught:
        await playing.play(tmp_path, seed=1, picture=Picture(quiet=True))
    assert exit_code(caught.value) == NOT_STARTED


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for a process that is no child")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_it(sent: signal.Signals) -> None:
    # Whoever runs the tests in the background has SIGINT ignored; a terminal has not.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from answerback.daemon.cli import main; main(['demo'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        started = next(line for line in parent.stdout if "worker pid" in line)
        worker = os.pidfd_open(int(started.rsplit(maxsplit=1)[1]))
        try:
            parent.send_signal(sent)
            assert select.select([worker], [], [], 20)[0] == [worker]
            parent.wait(20)
        finally:
            os.close(worker)
            parent.kill()
    folder = Path(next(word for word in started.split() if word.endswith("answerback.db"))).parent
    # SIGKILL leaves the folder; Ctrl-C does not.
    assert folder.exists() is (sent is signal.SIGKILL)
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
