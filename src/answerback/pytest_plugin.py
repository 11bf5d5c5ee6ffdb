"""The pytest plugin: one fixture, a local Agents API for the test that asks for it.

Imported by every pytest run where answerback is installed, so it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from answerback.testing import HarnessThread


@pytest.fixture
def agents_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[HarnessThread]:
    """Serve a local Agents API for this test, with OPENAI_BASE_URL and OPENAI_API_KEY pointing at it.

    It serves from a thread, so it is for synchronous tests and for every async plugin and backend alike.
    `agents_api.set_script(...)` says what the model does.
    """
    from answerback.testing import run_harness_thread

    with run_harness_thread() as harness:
        monkeypatch.setenv("OPENAI_BASE_URL", harness.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", harness.api_key)
        yield harness
