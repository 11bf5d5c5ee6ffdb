"""Cases A14 and A15: frames that carry nothing end no stream, and a stream that says nothing is no news."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from answerback import Handlers
from integration.rig import answering
from wire_player import Frame, Hang, PlayedSession, Raw, Require, Reset, Snapshot, Step, call


def going() -> tuple[Handlers, list[str]]:
    """Return a tool that says ok, and how often it did."""
    handlers = Handlers()
    ran: list[str] = []

    @handlers.tool
    async def go() -> str:
        """Say ok."""
        ran.append("go")
        return "ok"

    return handlers, ran


def snapshot(before: str = "", after: str = "\n\n", newline: str = "\n") -> Callable[[PlayedSession], bytes]:
    """Return a snapshot block between other bytes."""

    def build(session: PlayedSession) -> bytes:
        data = msgspec.json.encode({"event_id": "ev_raw", **session.snapshot_event()}).decode()
        return f"{before}data: {data}{after}".replace("\n", newline).encode()

    return build


SCRIPTS: dict[str, list[Step]] = {
    "retry, id and comments": [
        Raw(b"retry: 1500\n\n"),
        Raw(snapshot("id: 12\n")),
        Raw(b": still here\n\n"),
        Raw(b"event: ping\n\n"),
        Raw(b"data:\n\n"),
        Raw(b":\n\n"),
    ],
    "a mark in front": [Raw(b"\xef\xbb\xbf"), Raw(snapshot())],
    "carriage returns": [Raw(snapshot("event: agent.session.requires_action\n", newline="\r\n"))],
    "byte by byte": [Raw(snapshot("\ufeff: hello\n\n"), bytewise=True)],
    "an end mark": [Raw(b"data: [DONE]\n\n"), Raw(snapshot())],
    "not JSON": [Raw(b"data: {broken\n\n"), Raw(snapshot())],
    "unknown members": [Frame({"type": "agent.session.turn.hologram", "shape": {"a": [1]}}), Snapshot()],
    "a cut frame": [Reset({"type": "agent.session.turn.hologram"})],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_frames_without_news_end_no_stream(script: list[Step], caplog: pytest.LogCaptureFixture) -> None:
    handlers, ran = going()
    session = PlayedSession(pending=[call("c_a", "go")], streams=[script])
    async with answering(session, handlers) as stage:
        await stage.answered("c_a")
        await stage.ref.wait()
        opened = session.opened
    assert ran == ["go"]
    assert len(stage.player.results()) == 1
    if not any(isinstance(step, Reset) for step in script):
        assert opened == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_connection_that_says_nothing_is_noticed_within_its_bound() -> None:
    handlers, ran = going()
    session = PlayedSession(streams=[[Require([call("c_a", "go")]), Hang()]])
    async with answering(session, handlers, stream_idle_timeout=0.2) as stage:
        await stage.answered("c_a")
        # It was silent over something new, so it is dead: a new one is opened.
        await stage.player.until(lambda: session.opened >= 2)
    assert ran == ["go"]


async def test_comments_are_not_taken_for_news() -> None:
    handlers, ran = going()
    comments: list[Step] = [Raw(b": keep-alive\n\n")] * 5
    session = PlayedSession(streams=[[*comments, Require([call("c_a", "go")]), *comments, Hang()], [Snapshot()]])
    async with answering(session, handlers, stream_idle_timeout=0.2) as stage:
        await stage.answered("c_a")
    assert ran == ["go"]


async def test_silence_over_nothing_new_keeps_the_stream() -> None:
    handlers, _ = going()
    session = PlayedSession(streams=[[Hang()]])
    async with answering(session, handlers, stream_idle_timeout=0.1) as stage:
        # The read after the opening, then one for each silence.
        await stage.player.until(lambda: stage.player.count("GET", "/sess_1") >= 4)
        assert session.opened == 1
