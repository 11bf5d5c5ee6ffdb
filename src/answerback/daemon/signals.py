"""Signals of the daemon, on asyncio: each named one calls a function in the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger("answerback.daemon.signals")

Listeners = Mapping[signal.Signals, Callable[[], None]]


@contextmanager
def listening(listeners: Listeners) -> Generator[None]:
    """Call the listeners for the length of a block; afterwards the process only ends, and ignores them.

    Some loops cannot watch signals (they raise NotImplementedError). There only SIGINT and SIGTERM are heard, by a
    handler of the interpreter that wakes the loop, and this is said once.
    """
    loop = asyncio.get_running_loop()
    try:
        for number, call in listeners.items():
            loop.add_signal_handler(number, call)
    except (NotImplementedError, RuntimeError):
        logger.warning("signals are limited on this event loop: only SIGINT and SIGTERM are heard")
        with _by_interpreter(loop, listeners):
            yield
        return
    try:
        yield
    finally:
        for number in listeners:
            loop.remove_signal_handler(number)
            # What comes while the process ends must not change how it ends.
            signal.signal(number, signal.SIG_IGN)


def _waking(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    def handle(_: int, __: FrameType | None) -> None:
        loop.call_soon_threadsafe(call)

    return handle


@contextmanager
def _by_interpreter(loop: asyncio.AbstractEventLoop, listeners: Listeners) -> Generator[None]:
    heard = {signal.SIGINT, signal.SIGTERM} & listeners.keys()
    try:
        for number in heard:
            signal.signal(number, _waking(loop, listeners[number]))
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)
