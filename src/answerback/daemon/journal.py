"""Reading a store from the command line: read-only, beside a process that may go on writing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio

from answerback.store.reader import SQLiteReader

ResultT = TypeVar("ResultT")


def read(path: Path, job: Callable[[SQLiteReader], Awaitable[ResultT]]) -> ResultT:
    """Run a job on a read-only view of a store; a daemon may go on writing.

    Raises:
        StoreError: there is no store at this path, or it cannot be read.
    """

    async def run() -> ResultT:
        async with SQLiteReader(path) as reader:
            return await job(reader)

    return anyio.run(run)
