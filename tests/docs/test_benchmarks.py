"""The benchmarks run and print what they say; whether goals are met is for a quiet machine to say."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from source_tree import ROOT

BENCHMARKS = ROOT / "benchmarks"


def test_fanout_ends_with_one_line_of_ratios() -> None:
    command = [sys.executable, str(BENCHMARKS / "fanout.py"), "--rounds", "1", "--warm", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert set(ratios) == {"sdk_over_ours", "ours_over_gather"}
    # Eight handlers one after another against eight at once: more than that no machine is too busy for.
    assert ratios["sdk_over_ours"] > 1.5


def test_every_benchmark_has_its_line_in_the_readme() -> None:
    listed = set(re.findall(r"benchmarks/(\w+\.py)", (BENCHMARKS / "README.md").read_text(encoding="utf-8")))
    assert listed == {file.name for file in BENCHMARKS.glob("*.py")}
