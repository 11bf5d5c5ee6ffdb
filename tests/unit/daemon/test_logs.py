"""The daemon's log: JSON lines with ids, and no value, whoever logs it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Generator
from typing import Any

import pytest

from answerback.daemon.logs import configure
from call_records import CANARY


class Log(io.StringIO):
    """Where a test's records go."""

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was logged."""
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def log() -> Generator[Log]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = Log()
    configure(level="debug", style="json", stream=stream)
    try:
        yield stream
    finally:
        root.handlers[:], level = before
        root.setLevel(level)


def test_a_record_is_a_json_line_with_its_ids(log: Log) -> None:
    logging.getLogger("answerback.calls").info("call finished", extra={"session_id": "sess_1", "call_id": "c1"})
    (entry,) = log.entries
    assert (entry["event"], entry["level"], entry["logger"]) == ("call finished", "info", "answerback.calls")
    assert (entry["session_id"], entry["call_id"]) == ("sess_1", "c1")
    assert entry["timestamp"].endswith("Z")


def test_members_of_extra_that_are_not_ours_are_left_out(log: Log) -> None:
    logging.getLogger("app").warning("something", extra={"arguments": CANARY, "tool": "refund"})
    assert log.entries[0]["tool"] == "refund"
    assert CANARY not in log.getvalue()


def test_an_exception_is_its_class_and_place_never_its_text(log: Log) -> None:
    def raise_it() -> None:
        raise ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(CANARY)])

    try:
        raise_it()
    except ExceptionGroup as error:
        logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=error)
        logging.getLogger("app").exception("it failed")
    first, second = log.entries
    assert first["exception"].startswith("KeyError, ValueError at ")
    assert second["exception"].startswith("KeyError, ValueError at ")
    assert CANARY not in log.getvalue()


@pytest.mark.parametrize("name", ["openai._base_client", "httpx2", "httpcore2.http11", "uvicorn.error"])
def test_packages_that_log_bodies_are_silent_below_a_warning_even_when_told_to_speak(log: Log, name: str) -> None:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        logger.debug("Request options: %s", {"json": CANARY})
        logger.warning("slow")
    finally:
        logger.setLevel(before)
    assert [entry["event"] for entry in log.entries] == ["slow"]


def test_asyncio_quotes_no_exception_of_a_task(log: Log) -> None:
    logger = logging.getLogger("asyncio")
    logger.error(f"Task exception was never retrieved\nfuture: <Task exception=KeyError({CANARY!r})>")
    logger.warning("Executing %s took %.3f seconds", f"<Task exception=KeyError({CANARY!r})>", 0.2)
    assert [entry["event"] for entry in log.entries] == [
        "Task exception was never retrieved",
        "Executing %s took %.3f seconds",
    ]


def test_a_person_gets_lines_without_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = Terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        configure(stream=stream)
        logging.getLogger("answerback.daemon").info("serving", extra={"pid": 7})
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
    assert "serving" in stream.getvalue()
    assert "pid=7" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
