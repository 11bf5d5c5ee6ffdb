"""What can be shown of a reply while it is being made."""

from __future__ import annotations

from collections.abc import Callable

from anyio.streams.memory import MemoryObjectReceiveStream

from answerback.wire.events import Event
from common.splitting import clip

THINKING = "…"


class Sketch:
    """The newest words of each running call, and as much of the answer as is written."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._written = ""

    @property
    def writing(self) -> bool:
        """Whether some of the answer is written."""
        return bool(self._written)

    async def follow(self, events: MemoryObjectReceiveStream[Event]) -> None:
        """Take in a session's events until they end."""
        async for event in events:
            match event.type:
                case "answerback.call.progress":
                    # What a handler said with `ctx.progress(...)`.
                    self._notes[event.item_id or ""] = event.text or ""
                case "agent.session.turn.output_text.delta":
                    self._written += event.delta or ""
                case "agent.session.turn.item.added" if event.item is not None and event.item.type == "message":
                    self._written = ""
                case _:
                    pass

    def text(self, limit: int, *, size: Callable[[str], int] = len) -> str:
        """Return what to show now, at most so much."""
        return clip(self._written or "\n".join(self._notes.values()) or THINKING, limit, size=size)
