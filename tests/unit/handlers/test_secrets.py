"""What is declared secret: found wherever it is declared, masked, hashed with a key, encrypted, and never guessed."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from answerback import Handlers, Secret, Tool, ToolContext, ToolDefinitionError
from answerback.errors import ConfigurationError
from answerback.handlers.arguments import canonical_hash
from answerback.handlers.secrets import (
    KEY_VARIABLE,
    MASK,
    Keyring,
    Secrecy,
    UnknownKeyError,
    is_masked,
    is_sealed,
    is_secret,
)

if TYPE_CHECKING:
    from decimal import Decimal as Elsewhere

KEY, OTHER = "k" * 40, "o" * 40
CARD = "4111-1111-1111-1111"


@pytest.fixture(autouse=True)
def _no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@dataclasses.dataclass
class Card:
    number: Secret[str]
    owner: str


class Payment(TypedDict):
    cards: list[Card]


class Node(pydantic.BaseModel):
    value: int
    children: list[Node] = []


class Vault(msgspec.Struct):
    inner: Payment


def secrets_of(handlers: Handlers, name: str = "pay") -> tuple[frozenset[str], bool]:
    tool = handlers.get(name)
    assert tool is not None
    return tool.hidden.arguments, tool.hidden.result


def stored(handlers: Handlers, arguments: object, name: str = "pay") -> Any:
    raw = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
    return json.loads(handlers.secrecy.stored(name, raw, canonical_hash(raw))[0])


# where it may stand


@pytest.mark.parametrize(
    "annotation",
    [
        Secret[str],
        Secret[str] | None,
        list[Secret[int]],
        dict[str, Secret[str]],
        Card,
        Payment,
        list[Payment] | None,
        Vault,
        pydantic.SecretStr,
        pydantic.SecretBytes | None,
        Awaitable[Secret[str]],
    ],
)
def test_a_secret_is_found_anywhere_in_a_type(annotation: Any) -> None:
    assert is_secret(annotation)


@pytest.mark.parametrize("annotation", [str, list[int], Node, dict[str, Any], None, Callable[[int], str], "text"])
def test_nothing_else_is_taken_for_a_secret(annotation: Any) -> None:
    assert not is_secret(annotation)


def test_a_handler_takes_and_gives_the_plain_type() -> None:
    handlers = Handlers(secret_key=KEY)

    @handlers.tool
    def pay(card: Secret[str], cents: int, context: ToolContext, note: Secret[str] | None = None) -> Secret[str]:
        """Pay."""
        return card

    assert secrets_of(handlers) == (frozenset({"card", "note"}), True)
    assert pay.bind(json.dumps({"card": CARD, "cents": 1}).encode()).values["card"] == CARD
    assert pay.parameters["properties"]["card"] == {"type": "string"}


def test_an_alias_is_the_name_that_is_masked() -> None:
    handlers = Handlers(secret_key=KEY)

    @handlers.tool
    def pay(card: Annotated[Secret[str], pydantic.Field(alias="cardNumber")], cents: int = 0) -> str:
        """Pay."""
        return ""

    assert secrets_of(handlers)[0] == {"cardNumber"}
    assert stored(handlers, {"cardNumber": CARD, "cents": 7}) == {"cardNumber": MASK, "cents": 7}


def test_a_ready_schema_says_it_in_its_own_word() -> None:
    handlers = Handlers(secret_key=KEY)
    parameters = {
        "type": "object",
        "properties": {
            "pin": {"type": "string", "writeOnly": True},
            "card": {"anyOf": [{"$ref": "#/$defs/Card"}, {"type": "null"}]},
            "cents": {"type": "integer"},
        },
        "$defs": {"Card": {"type": "object", "properties": {"number": {"type": "string", "writeOnly": True}}}},
    }

    def handler(arguments: dict[str, Any]) -> Secret[str]:
        return ""

    handlers.add(Tool(name="pay", parameters=parameters, handler=handler))
    assert secrets_of(handlers) == (frozenset({"pin", "card"}), True)


def test_a_secret_result_that_cannot_be_read_off_is_refused_and_not_overlooked() -> None:
    handlers = Handlers(secret_key=KEY)

    def pay() -> Secret[Elsewhere]:
        """Pay."""
        raise NotImplementedError

    def fine() -> Elsewhere:
        """Return something nobody has to know."""
        raise NotImplementedError

    handlers.tool(fine)
    with pytest.raises(ToolDefinitionError, match="cannot be found"):
        handlers.tool(pay)


# arguments


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers(secret_key=KEY)

    @handlers.tool
    def pay(card: Secret[str], cents: int) -> str:
        """Pay."""
        return ""

    @handlers.tool
    def look(name: str) -> str:
        """Look."""
        return name

    return handlers


def test_what_is_not_known_to_be_harmless_is_masked(handlers: Handlers) -> None:
    assert stored(handlers, {"card": CARD, "cents": 7}) == {"card": MASK, "cents": 7}
    assert stored(handlers, {"crad": CARD, CARD: 7}) == {MASK: MASK}
    assert stored(handlers, json.dumps(json.dumps({"card": CARD})).encode()) == {"card": MASK}


@pytest.mark.parametrize(
    "raw", [b'{"card": "4111', b'"4111"', b"[4111]", b'{"card":"4111"}{"card":"4111"}', b"\xff4111"]
)
def test_arguments_that_are_not_one_object_are_masked_as_a_whole(handlers: Handlers, raw: bytes) -> None:
    assert stored(handlers, raw) == MASK


def test_arguments_of_other_tools_are_stored_byte_by_byte(handlers: Handlers) -> None:
    raw = b' {"name" : "x"}'
    assert handlers.secrecy.stored("look", raw, "h") == (raw, "h")
    assert handlers.secrecy.stored("unknown", raw, "h") == (raw, "h")


def test_the_hash_of_masked_arguments_tells_them_apart_and_not_what_they_are(handlers: Handlers) -> None:
    plain, other = canonical_hash(b'{"card":"1"}'), canonical_hash(b'{"card":"2"}')
    _, digest = handlers.secrecy.stored("pay", b'{"card":"1"}', plain)
    assert is_masked(digest)
    assert not is_masked(plain)
    assert plain not in digest
    assert handlers.secrecy.same(digest, plain)
    assert not handlers.secrecy.same(digest, other)
    assert handlers.secrecy.same(plain, plain)
    assert not handlers.secrecy.same(plain, other)


def test_without_a_key_arguments_are_masked_all_the_same_and_the_risk_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = Handlers()

    @handlers.tool
    def pay(card: Secret[str]) -> str:
        """Pay."""
        return ""

    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert KEY_VARIABLE in warning.getMessage()
    plain = canonical_hash(b'{"card":"1"}')
    arguments, digest = handlers.secrecy.stored("pay", b'{"card":"1"}', plain)
    assert json.loads(arguments) == {"card": MASK}
    assert Secrecy(keys=lambda: Keyring([KEY])).same(digest, plain), "a key may be added later"


# keys


def test_a_key_is_replaced_by_adding_the_new_one_in_front() -> None:
    old, both, new = Keyring([KEY]), Keyring([OTHER, KEY]), Keyring([OTHER])
    digest, sealed = old.digests("h")[0], old.seal(b"{}")
    assert digest in both.digests("h")
    assert both.digests("h")[0] == new.digests("h")[0] != digest
    assert both.unseal(sealed) == b"{}"
    assert new.unseal(both.seal(b"{}")) == b"{}"
    assert not new.knows(digest)
    with pytest.raises(UnknownKeyError, match="another key"):
        new.unseal(sealed)
    with pytest.raises(UnknownKeyError, match="give its key"):
        Keyring().unseal(sealed)
    with pytest.raises(UnknownKeyError):
        Secrecy(keys=lambda: new).same(digest, "h")


def test_results_are_the_very_bytes_again_and_never_encrypted_the_same_way_twice() -> None:
    keys = Keyring([KEY])
    element = b'{"type":"agent.session.input.tool_result","output":"\xc3\xa4"}'
    sealed = keys.seal(element)
    assert is_sealed(sealed)
    assert not is_sealed(element)
    assert element not in sealed
    assert keys.unseal(sealed) == element
    assert keys.unseal(element) == element
    assert keys.seal(element) != sealed


def test_a_changed_result_is_not_believed() -> None:
    keys = Keyring([KEY])
    sealed = bytearray(keys.seal(b"{}"))
    sealed[-2] ^= 1
    with pytest.raises(UnknownKeyError):
        keys.unseal(bytes(sealed))


def test_a_secret_result_needs_its_key_when_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def token() -> Secret[str]:
        """Give a token."""
        return ""

    with pytest.raises(ToolDefinitionError, match=KEY_VARIABLE):
        Handlers().tool(token)
    monkeypatch.setenv(KEY_VARIABLE, f"{OTHER}, {KEY}")
    handlers = Handlers()
    handlers.tool(token)
    assert handlers.secrecy.unsealed(Keyring([KEY]).seal(b"{}")) == b"{}"
    assert Keyring([OTHER]).unseal(handlers.secrecy.sealed("token", b"{}")) == b"{}"


def test_without_the_package_a_secret_result_is_refused_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)

    def token() -> Secret[str]:
        """Give a token."""
        return ""

    def pay(card: Secret[str]) -> str:
        """Pay."""
        return ""

    handlers = Handlers(secret_key=KEY)
    handlers.tool(pay)
    with pytest.raises(ConfigurationError, match=r"pip install 'answerback\[secrets\]'"):
        handlers.tool(token)


def test_a_short_key_is_refused_with_the_way_to_make_one() -> None:
    with pytest.raises(ConfigurationError, match="token_urlsafe"):
        Keyring(["short"])


# what is printed


def test_no_representation_shows_a_value_or_a_key(handlers: Handlers) -> None:
    tool = handlers.get("pay")
    assert tool is not None
    bound = tool.bind(json.dumps({"card": CARD, "cents": 7}).encode())
    shown = f"{bound!r} {handlers!r} {handlers.secrecy!r} {Keyring([KEY])!r} {tool!r} {Secret[str]!r}"
    assert CARD not in shown
    assert KEY not in shown
    assert "card" in repr(bound)
