"""Signals on a loop that can watch them, and on one that cannot."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Generator

import anyio
import pytest

from answerback.daemon.signals import Listeners, listening


@pytest.fixture(autouse=True)
def _as_before() -> Generator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("watched", [True, False])
async def test_a_signal_calls_its_listener_in_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, watched: bool
) -> None:
    if not watched:

        def refuse(*_: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse, raising=False)
    heard = anyio.Event()
    listeners: Listeners = {signal.SIGINT: heard.set}
    with caplog.at_level(logging.WARNING), listening(listeners):
        os.kill(os.getpid(), signal.SIGINT)
        with anyio.fail_after(5):
            await heard.wait()
    assert ("signals are limited" in caplog.text) is not watched
    # What comes afterwards changes nothing any more.
    os.kill(os.getpid(), signal.SIGINT)
