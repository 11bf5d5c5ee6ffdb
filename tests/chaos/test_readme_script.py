"""The script of the README, killed at random moments and run again, refunds once and says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from chaos.kill_rig import Rig, rig_of
from chaos.script_worker import ScriptRun
from chaos.side_by_side import LANES, selected, side_by_side

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL, FULL = 5, 20
MOST_KILLS = 3
CALM_RUNS = 3


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What is left when the script was allowed to end."""

    killed: Sequence[float]
    """When it was killed, in seconds of a run; runs that ended before their time are not in it."""
    code: int
    output: str
    refunds: Sequence[bytes]


Endings: TypeAlias = Callable[[int], Ending]


@pytest.fixture(scope="module")
def endings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Endings]:
    """Kill the script at the seeds' moments, side by side; a test waits for its own."""
    folder = tmp_path_factory.mktemp("readme")
    with rig_of(folder, EXAMPLES / "script.yaml", lanes=LANES) as rig:
        length = _length(rig, folder)

        def end(seed: int) -> Ending:
            return _killed_and_run_again(rig, folder / str(seed), seed=seed, length=length)

        with side_by_side(selected(request, "seed"), end, name=lambda seed: seed) as result:
            yield result


def _length(rig: Rig, folder: Path) -> float:
    """Return the seconds an undisturbed run takes, of a few the fewest: the first one is slow."""
    seconds: list[float] = []
    for n in range(CALM_RUNS):
        calm = folder / f"calm-{n}"
        calm.mkdir()
        ended = rig.run_program("script", _told(rig, calm), output=calm / "output")
        assert (ended.signal, ended.code) == (0, 0), (calm / "output").read_text()
        seconds.append(ended.seconds)
    return min(seconds)


def _told(rig: Rig, folder: Path) -> bytes:
    environment = {
        "OPENAI_BASE_URL": rig.server.base_url,
        "OPENAI_API_KEY": "sk-harness",
        "BANK_LEDGER": str(folder / "ledger.jsonl"),
        "CALLS_DB": str(folder / "calls.db"),
    }
    script = str(EXAMPLES / "embed.py")
    return msgspec.json.encode(ScriptRun(script=script, folder=str(folder), environment=environment))


def _killed_and_run_again(rig: Rig, folder: Path, *, seed: int, length: float) -> Ending:
    folder.mkdir()
    rng = random.Random(seed)
    killed: list[float] = []
    for run in range(rng.randint(1, MOST_KILLS)):
        # The first one is to come in time also when this run is a fast one.
        moment = rng.uniform(0.0, length if run else 0.8 * length)
        ended = rig.run_program("script", _told(rig, folder), output=folder / f"output-{run}", kill_after=moment)
        if ended.signal:
            killed.append(ended.seconds)
    ended = rig.run_program("script", _told(rig, folder), output=folder / "output")
    ledger = folder / "ledger.jsonl"
    return Ending(
        killed=killed,
        code=ended.code or ended.signal,
        output=(folder / "output").read_text(),
        refunds=ledger.read_bytes().splitlines() if ledger.exists() else [],
    )


@pytest.mark.parametrize("seed", range(SMALL))
def test_the_readme_script_killed_anywhere_refunds_once(seed: int, endings: Endings) -> None:
    _check(endings(seed))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(SMALL, FULL))
def test_the_readme_script_killed_anywhere_else_refunds_once(seed: int, endings: Endings) -> None:
    _check(endings(seed))


def _check(ending: Ending) -> None:
    assert ending.killed, "every run ended before it was to be killed"
    assert ending.code == 0, ending.output
    assert len(ending.refunds) == 1
    assert ending.output.splitlines()[-1] == "Order 7 is refunded: rf_1."
