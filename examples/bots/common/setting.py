"""The settings all bots read from the environment, and the runtime they make of them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI

from answerback import Runtime, SQLiteStore
from common.database import Database, open_database
from common.desk import Desk, Platform
from common.inbox import TABLE, Inbox
from common.shop import handlers


def folder() -> Path:
    """Return where a bot keeps its two files: BOT_FOLDER, or the current folder."""
    return Path(os.environ.get("BOT_FOLDER", "."))


def agent() -> dict[str, Any]:
    """Return the agent of new sessions; BOT_MODEL names its model."""
    return {"model": os.environ.get("BOT_MODEL", "gpt-5.5")}


def approvers() -> frozenset[str]:
    """Return who may approve: the ids in BOT_APPROVERS, separated by commas; nobody named is anybody."""
    return frozenset(filter(None, (name.strip() for name in os.environ.get("BOT_APPROVERS", "").split(","))))


@asynccontextmanager
async def open_files(name: str, *tables: str) -> AsyncGenerator[tuple[Runtime, Database]]:
    """Run the runtime over `NAME-calls.db` beside the bot's own `NAME-inbox.db`."""
    store = SQLiteStore(folder() / f"{name}-calls.db")
    async with (
        open_database(folder() / f"{name}-inbox.db", TABLE, *tables) as database,
        AsyncOpenAI() as client,
        Runtime(client, handlers=handlers, store=store) as runtime,
    ):
        yield runtime, database


@asynccontextmanager
async def open_desk(name: str, platform: Platform) -> AsyncGenerator[Desk]:
    """Open everything a bot on a platform needs."""
    async with open_files(name) as (runtime, database):
        desk = Desk(runtime, platform, Inbox(database), agent=agent(), approvers=approvers())
        async with desk.open():
            yield desk


async def until_told_to_stop() -> None:
    """Return on Ctrl-C or SIGTERM, so that everything is closed in order."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(aiter(signals))
