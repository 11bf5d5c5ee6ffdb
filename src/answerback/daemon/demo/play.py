"""The demonstration from its title to its last line."""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path

from answerback.daemon.demo.facts import Report
from answerback.daemon.demo.picture import Picture
from answerback.daemon.demo.process import PATIENCE, DemoError, Worker
from answerback.daemon.demo.stage import Stage, first_life, script, second_life, with_helper
from answerback.daemon.demo.story import QUESTION
from answerback.errors import ConfigurationError
from answerback.harness.run import run_harness


async def play(folder: Path, *, seed: int, picture: Picture) -> Report:
    """Play the demonstration and return what was measured.

    Args:
        folder: an empty folder for store, ledgers and the worker's complaints.
        seed: what the harness's ids are drawn from.
        picture: where it is drawn.

    Raises:
        DemoError: it could not be played to its end.
        ConfigurationError: the harness got no port.
    """
    began = time.monotonic()
    version = metadata.version("answerback")
    picture.line(
        f"answerback {version}  ·  demo: refund two orders, look up three customers  ·  seed {seed}", bold=True
    )
    try:
        async with run_harness(script(), transport="tcp", seed=seed) as harness:
            return await _acts(Stage(harness, folder), picture, began)
    except TimeoutError as error:
        raise DemoError(f"nothing happened for {PATIENCE:.0f} seconds; this machine may be too busy") from error
    except ConfigurationError as error:
        if isinstance(error.__cause__, OSError):
            raise ConfigurationError(
                f"the demo's harness got no port on 127.0.0.1 ({error.__cause__.strerror}); is loopback available?"
            ) from error.__cause__
        raise


async def _acts(stage: Stage, picture: Picture, began: float) -> Report:
    def started(worker: Worker) -> None:
        picture.step("①", "start", f"harness {stage.harness.base_url} · store {stage.store} · worker pid {worker.pid}")
        picture.step("②", "ask", f'"{QUESTION}"')

    before = await first_life(stage, started)
    picture.calls(before)
    picture.kill(before)
    after = await second_life(stage)
    picture.restart(after)
    picture.done(after)
    ledger = stage.count("ours.jsonl")
    picture.ours(ledger)
    helper = await with_helper(stage)
    picture.helper(helper)
    seconds = round(time.monotonic() - began, 1)
    picture.line(f"  {seconds:.0f} s, every figure measured in this run")
    return Report(folder=str(stage.folder), seconds=seconds, before=before, after=after, ledger=ledger, helper=helper)
