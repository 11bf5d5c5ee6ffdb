"""Open a Runtime on a store file, and say in one line how that went; run by `test_case_bad_store` as a program."""

from __future__ import annotations

import sys

import anyio
from openai import AsyncOpenAI

from answerback import Handlers, Runtime, SQLiteStore
from answerback.errors import StoreError


async def main(path: str) -> None:
    """Enter and leave a Runtime that follows nothing."""
    client = AsyncOpenAI(api_key="sk-test", base_url="http://127.0.0.1:9")
    try:
        async with client, Runtime(client, handlers=Handlers(), store=SQLiteStore(path)):
            print("opened")
    except StoreError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
