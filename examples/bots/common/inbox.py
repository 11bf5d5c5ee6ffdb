"""The messages a bot was sent, and what it still owes for each; on the disk before the platform is told "received".

A platform delivers a message again until it is told that it arrived, and sometimes after that. The id it gives the
message is the key here, so what comes twice is known, and what was in the middle when the bot died is still owed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from common.database import Database

TABLE = """
CREATE TABLE IF NOT EXISTS messages (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  place TEXT NOT NULL,
  text TEXT NOT NULL,
  posted TEXT NOT NULL DEFAULT '[]',
  reply TEXT,
  done INTEGER NOT NULL DEFAULT 0,
  ended INTEGER NOT NULL DEFAULT 0
) STRICT
"""


@dataclass(frozen=True)
class Message:
    """One message and how far its reply has come."""

    id: str
    """The platform's id of the event; also the key under which it is sent to the agent."""
    place: str
    """The thread or chat it was said in."""
    text: str
    posted: tuple[str, ...]
    """The platform's ids of the messages that hold the reply, in order."""
    reply: str | None
    """The whole reply, once there is one."""
    session: str
    """The key of the agent's session."""
    opening: bool
    """Whether it is the first of its session, which travels in the creation."""


class Inbox:
    """The table of messages."""

    def __init__(self, database: Database) -> None:
        self._run = database.run

    async def add(self, id: str, place: str, text: str) -> bool:  # noqa: A002 - the platform's word
        """Note a message; return whether it is new."""
        statement = "INSERT INTO messages (id, place, text) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING number"
        return bool(await self._run(statement, id, place, text))

    async def places(self) -> list[str]:
        """Return the places where something is owed."""
        return [place for (place,) in await self._run("SELECT DISTINCT place FROM messages WHERE NOT done")]

    async def owed(self, place: str) -> Message | None:
        """Return the oldest message of a place that is not dealt with."""
        rows = await self._run(
            "SELECT id, text, posted, reply, number FROM messages WHERE place = ? AND NOT done ORDER BY number LIMIT 1",
            place,
        )
        if not rows:
            return None
        identity, text, posted, reply, number = rows[0]
        session, began = await self._session(place)
        earlier = await self._run(
            "SELECT 1 FROM messages WHERE place = ? AND number > ? AND number < ? LIMIT 1", place, began, number
        )
        return Message(identity, place, text, tuple(json.loads(posted)), reply, session, opening=not earlier)

    async def session(self, place: str) -> str | None:
        """Return the session key of a place, or None where nothing was said since the last one ended."""
        session, began = await self._session(place)
        said = await self._run("SELECT 1 FROM messages WHERE place = ? AND number > ? LIMIT 1", place, began)
        return session if said else None

    async def posted(self, message: Message, id: str) -> Message:  # noqa: A002 - the platform's word
        """Note one more message of the reply."""
        ids = (*message.posted, id)
        await self._run("UPDATE messages SET posted = ? WHERE id = ?", json.dumps(ids), message.id)
        return replace(message, posted=ids)

    async def replied(self, message: Message, reply: str, *, ended: bool = False) -> Message:
        """Note what the reply is; `ended` says that the session is over, and the next message opens a new one."""
        await self._run("UPDATE messages SET reply = ?, ended = ? WHERE id = ?", reply, ended, message.id)
        return replace(message, reply=reply)

    async def finish(self, message: Message) -> None:
        """Note that nothing is owed for it any more."""
        await self._run("UPDATE messages SET done = 1 WHERE id = ?", message.id)

    async def _session(self, place: str) -> tuple[str, int]:
        """Return the session key of a place, and the number of the message that ended the session before it."""
        ((count, last),) = await self._run(
            "SELECT count(*), coalesce(max(number), 0) FROM messages WHERE place = ? AND ended AND done", place
        )
        return (f"{place}#{count + 1}" if count else place), last
