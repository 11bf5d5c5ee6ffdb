"""What `answerback doctor` looks at: each check is one line with a verdict, and what to do where it is bad."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError

from answerback.daemon.address import find_daemon
from answerback.daemon.journal import read
from answerback.errors import StoreError
from answerback.store.reader import SQLiteReader, lock_owner

OLDEST_PYTHON = (3, 11)
STANDS_ON = ("openai", "anyio", "pydantic", "msgspec", "aiosqlite", "starlette", "uvicorn")
API_PATIENCE = 10.0
"""Seconds the API may take to answer."""
CLOCK_SKEW = 60.0
"""Seconds our clock may differ from the API's; deadlines and settle times are compared with what it says."""
FREE_BYTES = 200_000_000
"""Free space below which a store is soon in trouble."""

Verdict: TypeAlias = Literal["ok", "warning", "failed"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. `detail` holds no secret."""

    name: str
    verdict: Verdict
    detail: str


def examine(store: Path, client: Callable[[], AsyncOpenAI]) -> Iterator[Check]:
    """Look at everything, one by one. Blocks; the API is asked last, because that may take seconds.

    Args:
        store: the store file a daemon would use.
        client: makes the client that would be used.
    """
    yield _python()
    yield _versions()
    yield _store(store)
    yield _lock(store)
    yield _disk(store)
    key = _key(client)
    yield key
    if key.verdict == "ok":
        yield from anyio.run(_api, client)


def _python() -> Check:
    good = sys.version_info[:2] >= OLDEST_PYTHON
    return Check("python", "ok" if good else "failed", f"{platform.python_version()} on {platform.system()}")


def _versions() -> Check:
    found = {"sqlite": sqlite3.sqlite_version} | {name: metadata.version(name) for name in ("answerback", *STANDS_ON)}
    return Check("versions", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))


def _store(store: Path) -> Check:
    if not store.exists():
        return Check("store", "ok", f"{store} is not there yet; `up` makes it")
    try:
        sessions = len(read(store, _sessions))
    except StoreError as error:
        return Check("store", "failed", str(error))
    return Check("store", "ok", f"{store}, {store.stat().st_size} bytes, {sessions} sessions")


async def _sessions(reader: SQLiteReader) -> list[object]:
    return list(await reader.sessions(limit=1_000_000))


def _lock(store: Path) -> Check:
    try:
        owner, daemon = lock_owner(store), find_daemon(store)
    except StoreError as error:
        return Check("lock", "failed", str(error))
    if owner is None:
        return Check("lock", "ok", "free")
    who = f"held by host {owner.get('host')} pid {owner.get('pid')} since {owner.get('since')}"
    return Check("lock", "ok", f"{who}, a daemon at {daemon.url}" if daemon is not None else f"{who}, no daemon")


def _disk(store: Path) -> Check:
    folder = store.absolute().parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check("disk", "failed", f"{folder}: {error.strerror}")
    if not os.access(folder, os.W_OK):
        return Check("disk", "failed", f"{folder} cannot be written")
    return Check("disk", "ok" if free >= FREE_BYTES else "warning", f"{free // 1_000_000} MB free in {folder}")


def _key(client: Callable[[], AsyncOpenAI]) -> Check:
    try:
        made = client()
    except OpenAIError:
        return Check("key", "failed", "no API key: set OPENAI_API_KEY, or give the App a client of its own")
    return Check("key", "ok", f"a key is set; the API is {_public(made.base_url)}")


def _public(url: httpx2.URL) -> str:
    """Return an address without what may be secret in it."""
    return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path}"


async def _api(client: Callable[[], AsyncOpenAI]) -> list[Check]:
    began = time.time()
    async with client() as made:
        options = made.with_options(max_retries=0, timeout=API_PATIENCE)
        try:
            response = await options.get(
                "/agents/sessions?limit=1", cast_to=httpx2.Response, options={"headers": {"OpenAI-Beta": "agents=v1"}}
            )
        except APIStatusError as error:
            refused = error.status_code in {401, 403}
            why = "it refuses the key" if refused else "it refuses to list sessions"
            return [Check("api", "failed", f"HTTP {error.status_code}: {why}"), *_clock(error.response, began)]
        except (APIConnectionError, httpx2.HTTPError) as error:
            where = _public(made.base_url)
            return [
                Check("api", "failed", f"no answer from {where} ({type(error).__name__}): is OPENAI_BASE_URL right?")
            ]
    return [Check("api", "ok", f"answers in {(time.time() - began) * 1000:.0f} ms"), *_clock(response, began)]


def _clock(response: httpx2.Response, began: float) -> list[Check]:
    try:
        theirs = parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return [Check("clock", "warning", "the API does not say what time it is")]
    # Their time is whole seconds, taken between our question and its answer.
    skew = max(0.0, began - 1 - theirs, theirs - time.time())
    if skew > CLOCK_SKEW:
        return [Check("clock", "failed", f"{skew:.0f} s off the API's: set the clock")]
    return [Check("clock", "ok", "agrees with the API's")]
