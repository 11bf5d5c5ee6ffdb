"""Run the cases of a test module at the same time, and let each test wait for its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

PATIENCE = 240.0
"""Seconds a test waits for its case, which shares the machine with all others."""
LANES = 2 * (os.cpu_count() or 1)
"""How many run at once: half of the time they wait for a disk or for each other."""

CaseT = TypeVar("CaseT")
ResultT = TypeVar("ResultT")


@contextlib.contextmanager
def side_by_side(
    cases: Iterable[CaseT], run: Callable[[CaseT], ResultT], *, name: Callable[[CaseT], object]
) -> Generator[Callable[[CaseT], ResultT]]:
    """Start all cases; yields a function that waits for the result of one of them."""
    with ThreadPoolExecutor(LANES) as pool:
        futures: dict[object, Future[ResultT]] = {name(case): pool.submit(run, case) for case in cases}
        try:
            yield lambda case: futures[name(case)].result(PATIENCE)
        finally:
            for future in futures.values():
                future.cancel()


def selected(request: pytest.FixtureRequest, parameter: str) -> Sequence[Any]:
    """Return the values of a parameter in the tests of this module that will run: one test does not pay for all."""
    values: list[Any] = []
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.path != request.path:
            continue
        parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
        skipped = item.get_closest_marker("skip") is not None
        if request.fixturename in item.fixturenames and parameter in parameters and not skipped:
            values.append(parameters[parameter])
    return values
