"""What every test shares: both async backends, and the options that widen a run.

A plain `pytest` run must pass on a newcomer's machine: a test that needs more than Python says so with a marker and is
skipped with its reason where that is missing.
"""

from __future__ import annotations

import shutil

import hypothesis
import pytest

_COMPILERS = ("cc", "gcc", "clang")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("answerback")
    group.addoption("--full", action="store_true", help="run the long form of the suites marked `full` as well")
    group.addoption("--network", action="store_true", help="run the tests that need the package index as well")


def pytest_configure(config: pytest.Config) -> None:
    # A busy machine is not a failure: no deadline per example, the same examples on every run of the small form.
    hypothesis.settings.register_profile("answerback", deadline=None, derandomize=True)
    hypothesis.settings.register_profile("answerback-full", deadline=None)
    hypothesis.settings.load_profile("answerback-full" if config.getoption("--full") else "answerback")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {
        "full": None if config.getoption("--full") else "the long form runs with --full",
        "network": None if config.getoption("--network") else "needs the package index; runs with --network",
        "compiler": None if any(map(shutil.which, _COMPILERS)) else "needs a C compiler (cc, gcc or clang)",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both backends; a test for one of them parametrises `anyio_backend` itself."""
    backend: str = request.param
    return backend
