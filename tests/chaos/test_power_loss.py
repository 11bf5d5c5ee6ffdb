"""A power loss takes back nothing that was promised (P6), and a weaker mode is seen to be weaker by the same means."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from chaos.power_loss import Op, Report, record, replay, run


@functools.cache
def _traces() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode == 0


@pytest.fixture(autouse=True)
def _strace() -> None:
    if not _traces():
        pytest.skip("needs strace, and the right to trace a process")


def _worked(report: Report, calls: int) -> bool:
    """Whether the recording shows a store at work: all promises, the log, the copying into the file, two lives."""
    kinds = report.operations
    return report.promises == 4 * calls and min(kinds["sync"], kinds["truncate"], kinds["unlink"]) > 1


def test_no_state_a_power_loss_may_leave_breaks_a_promise() -> None:
    report = run("FULL", calls=3, states=1)
    assert _worked(report, 3), report
    assert report.states > 1_000
    assert report.bad == {}


@pytest.mark.full
def test_no_state_of_a_longer_life_breaks_a_promise() -> None:
    report = run("FULL", calls=12, states=8)
    assert _worked(report, 12), report
    assert report.bad == {}


@pytest.mark.parametrize(("synchronous", "share"), [("NORMAL", 0.1), ("OFF", 0.4)])
def test_a_weaker_mode_is_found_out(synchronous: str, share: float) -> None:
    report = run(synchronous, calls=3, states=1)
    assert report.bad.get("lost", 0) > 0
    assert sum(report.bad.values()) > share * report.states, report


def test_a_store_that_forgot_one_kind_of_sync_is_found_out() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "db"
        folder.mkdir()
        operations = record(folder, "FULL", 2)

        def without(kind: str, suffix: str) -> list[Op]:
            return [op for op in operations if not (op.kind == kind and op.name.endswith(suffix))]

        for kind, suffix in (("sync", "-wal"), ("sync", ".db"), ("sync_folder", "")):
            report = replay(without(kind, suffix), Path(name) / "after", synchronous="FULL", states=1)
            assert report.bad, f"without {kind} of *{suffix}"
        assert replay(operations, Path(name) / "after", synchronous="FULL", states=1).bad == {}
