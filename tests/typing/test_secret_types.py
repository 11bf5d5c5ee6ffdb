"""What type checkers see of `Secret`: the type inside it and nothing else; pyright and mypy, both strict, are the test."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from answerback import Handlers, Happened, NotHappened, Secret

handlers = Handlers(secret_key="k" * 40)


@handlers.tool
async def charge(card: Secret[str], note: Secret[str] | None = None) -> Secret[dict[str, int]]:
    """Charge a card."""
    assert_type(card, str)
    assert_type(note, str | None)
    return {"cents": len(card)}


@charge.verify
def _(card: str, note: str | None = None) -> Happened[dict[str, int]] | NotHappened:
    return NotHappened()


@handlers.tool
def token(names: list[Secret[str]]) -> Secret[str]:
    """Give a token."""
    return names[0].upper()


def test_a_tool_with_secrets_is_called_with_plain_values() -> None:
    assert_type(token(["a"]), str)
    assert token(["a"]) == "A"
    pending: Coroutine[Any, Any, dict[str, int]] = charge("1234")
    pending.close()
