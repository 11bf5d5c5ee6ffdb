"""Secret arguments and results: masked in the journal and wherever it is shown, encrypted where the bytes must be kept.

An argument declared `Secret` is stored as a mask and a hash. Its value is taken from the session's list of required
actions when the call runs, also after a restart: the server lists it for as long as it waits. A `Secret` result has
to outlive the process, so its exact bytes are kept, encrypted.

What this cannot hide: the server has both (it sent the one, and is sent the other); the handler has them; and a
checkpoint or a `ToolError` holds what the handler puts into it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin

import msgspec

from answerback.errors import ArgumentsError, ConfigurationError
from answerback.handlers.arguments import decode
from answerback.handlers.signature import Signature

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

T = TypeVar("T")

MASK = "[secret]"
"""What stands in the journal for a hidden value."""
KEY_VARIABLE = "ANSWERBACK_SECRET_KEY"
KEY_LENGTH = 32
"""Characters a key has at least; 32 random ones of base64 are 192 bits."""
_KEY_ADVICE = 'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
_MASKED = "masked:"
_SEALED = b"sealed:"
"""No `tool_result` element begins so: they are JSON objects."""
_KEYLESS = "none"


class Mark(msgspec.Struct, frozen=True):
    """What `Secret[...]` leaves in an annotation; type checkers see the type inside only."""


Secret = Annotated[T, Mark()]
"""`card: Secret[str]` hides an argument, `-> Secret[str]` a result; the handler takes and gives a plain `str`."""


class Hidden(msgspec.Struct, frozen=True):
    """What a tool declares secret."""

    arguments: frozenset[str] = frozenset()
    """Arguments whose values are never stored, by their names on the wire."""
    shown: frozenset[str] = frozenset()
    """The other arguments of the tool: the only ones that may be stored as they are."""
    result: bool = False


def hidden_parts(signature: Signature, wire: Mapping[str, str], parameters: Mapping[str, Any]) -> Hidden:
    """Find out what a tool hides.

    An argument is hidden as a whole when `Secret` (or pydantic's SecretStr or SecretBytes) stands anywhere in its type,
    or `writeOnly: true` in its schema.

    Args:
        signature: the handler's.
        wire: parameter names to the names the model uses, for a tool made from a function.
        parameters: its JSON Schema.
    """
    properties = cast("Mapping[str, Any]", parameters.get("properties", {}))
    secret = {wire[one.name] for one in signature.parameters if one.name in wire and is_secret(one.annotation)}
    secret |= {name for name, schema in properties.items() if _write_only(schema, parameters, set())}
    return Hidden(
        arguments=frozenset(secret), shown=frozenset(properties) - secret, result=is_secret(signature.returns)
    )


def is_secret(annotation: Any) -> bool:
    """Whether a type is, or holds, something secret."""
    return _holds(annotation, set())


def _holds(annotation: Any, seen: set[int]) -> bool:
    # Imported here because commands that only print know this module too.
    import pydantic

    if isinstance(annotation, Mark) or annotation is pydantic.SecretStr or annotation is pydantic.SecretBytes:
        return True
    return any(_holds(inner, seen) for inner in (*_parts(annotation), *_fields(annotation, seen)))


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return what stands in the brackets of a type, and what Annotated adds to it."""
    return (*get_args(annotation), *getattr(annotation, "__metadata__", ()))


def _fields(annotation: Any, seen: set[int]) -> list[Any]:
    """Return the types of a class's fields, once per class, and what an alias of `type X = ...` stands for."""
    kind = get_origin(annotation) or annotation
    if id(kind) in seen:
        return []
    seen.add(id(kind))
    if hasattr(kind, "__value__"):
        return [kind.__value__]
    if not isinstance(kind, type) or kind.__module__ == "builtins" or not getattr(kind, "__annotations__", None):
        return []
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError, AttributeError):
        # Its annotations cannot be read here: their text is all there is to go by.
        return [Mark() for text in kind.__annotations__.values() if "Secret" in str(text)]


def _write_only(schema: Any, root: Mapping[str, Any], seen: set[str]) -> bool:
    """Look for `writeOnly: true`, JSON Schema's own word for a value that is taken and never given back."""
    if isinstance(schema, list):
        return any(_write_only(one, root, seen) for one in cast("list[object]", schema))
    if not isinstance(schema, dict):
        return False
    members = cast("dict[str, Any]", schema)
    reference = members.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        definition = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        if _write_only(definition, root, seen):
            return True
    return members.get("writeOnly") is True or any(_write_only(value, root, seen) for value in members.values())


def is_masked(arguments_hash: str) -> bool:
    """Whether this hash belongs to a row whose arguments are masked."""
    return arguments_hash.startswith(_MASKED)


def is_sealed(element: bytes) -> bool:
    """Whether these stored bytes are encrypted."""
    return element.startswith(_SEALED)


class UnknownKeyError(ConfigurationError):
    """Raised when something in the store was written under a key this process was not given."""


class Keyring:
    """The keys: the first one hides, all of them are tried to read. A key is replaced by adding the new one in front.

    Args:
        keys: texts of at least 32 random characters.

    Raises:
        ConfigurationError: one is too short.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        if any(len(key) < KEY_LENGTH for key in keys):
            raise ConfigurationError(f"a secret key has at least {KEY_LENGTH} random characters; {_KEY_ADVICE}")
        self._keys = tuple(key.encode() for key in keys)
        self._ciphers: MultiFernet | None = None

    def __repr__(self) -> str:
        return f"<Keyring {len(self._keys)} keys>"

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the keys that tell nothing about them; the last stands for having none."""
        return (*(_derived(key, "id").hex()[:8] for key in self._keys), _KEYLESS)

    def digests(self, arguments_hash: str) -> tuple[str, ...]:
        """Return what a masked row may say in place of this hash; the first form is the one to store.

        Keyed, because the hash of a short secret beside otherwise known arguments can be found by trying.
        """
        keyed = [
            f"{_MASKED}{name}:{hmac.digest(_derived(key, 'arguments'), arguments_hash.encode(), 'sha256').hex()}"
            for name, key in zip(self.ids, self._keys, strict=False)
        ]
        return (*keyed, f"{_MASKED}{_KEYLESS}:{arguments_hash}")

    def knows(self, digest: str) -> bool:
        """Whether a masked row's hash was made under a key that is here, so that comparing says something."""
        return digest.split(":")[1] in self.ids

    def seal(self, element: bytes) -> bytes:
        """Encrypt the exact bytes of a result."""
        return _SEALED + self._cipher().encrypt(element)

    def unseal(self, stored: bytes) -> bytes:
        """Return the exact bytes of a stored result, encrypted or not.

        Raises:
            UnknownKeyError: none of the keys fits.
        """
        if not is_sealed(stored):
            return stored
        if not self._keys:
            raise UnknownKeyError(f"a stored result is encrypted: give its key in secret_key= or {KEY_VARIABLE}")
        cipher = self._cipher()
        from cryptography.fernet import InvalidToken

        try:
            return cipher.decrypt(stored.removeprefix(_SEALED))
        except InvalidToken:
            raise UnknownKeyError(
                f"a stored result was encrypted under another key: add that one to secret_key= or {KEY_VARIABLE}"
            ) from None

    def check_cipher(self) -> None:
        """Raise ConfigurationError when results cannot be encrypted here."""
        self._cipher()

    def _cipher(self) -> MultiFernet:
        if self._ciphers is None:
            try:
                from cryptography.fernet import Fernet, MultiFernet
            except ImportError:
                raise ConfigurationError(
                    "secret results need the package cryptography: pip install 'answerback[secrets]'"
                ) from None
            self._ciphers = MultiFernet(
                [Fernet(base64.urlsafe_b64encode(_derived(key, "results"))) for key in self._keys]
            )
        return self._ciphers


def read_keys(given: str | Sequence[str] | None) -> Keyring:
    """Return the keys that were given, else those of the environment: one, or several with commas between them.

    Raises:
        ConfigurationError: one is too short.
    """
    if given is None:
        given = [key.strip() for key in os.environ.get(KEY_VARIABLE, "").split(",") if key.strip()]
    return Keyring([given] if isinstance(given, str) else given)


def _derived(key: bytes, purpose: str) -> bytes:
    """Derive the 32 bytes of one purpose, so that no key serves two algorithms."""
    return hmac.digest(key, f"answerback {purpose} 1".encode(), "sha256")


class Secrecy:
    """What the journal asks: how to store the arguments and results of each tool.

    Args:
        hidden: tells what a tool hides, by its name; None for a tool that is not known.
        keys: gives the keys.
    """

    def __init__(
        self, hidden: Callable[[str], Hidden | None] = lambda _: None, keys: Callable[[], Keyring] = Keyring
    ) -> None:
        self._hidden = hidden
        self._keys = keys

    def __repr__(self) -> str:
        return f"<Secrecy {self._keys()!r}>"

    def stored(self, name: str, arguments: bytes, arguments_hash: str) -> tuple[bytes, str]:
        """Return what a row holds of a call's arguments, and the hash it knows them by."""
        hidden = self._hidden(name)
        if hidden is None or not hidden.arguments:
            return arguments, arguments_hash
        return masked(arguments, hidden), self._keys().digests(arguments_hash)[0]

    def same(self, digest: str, arguments_hash: str) -> bool:
        """Whether a row's hash stands for these arguments.

        Raises:
            UnknownKeyError: it was made under a key that is not here.
        """
        if not is_masked(digest):
            return digest == arguments_hash
        keys = self._keys()
        if not keys.knows(digest):
            raise UnknownKeyError(
                f"a call's arguments were hashed under another key: add that one to secret_key= or {KEY_VARIABLE}"
            )
        return digest in keys.digests(arguments_hash)

    def sealed(self, name: str, element: bytes) -> bytes:
        """Return what a row holds of a result."""
        hidden = self._hidden(name)
        return self._keys().seal(element) if hidden is not None and hidden.result else element

    def unsealed(self, stored: bytes) -> bytes:
        """Return the bytes to send; see `Keyring.unseal`."""
        return self._keys().unseal(stored) if is_sealed(stored) else stored


def masked(arguments: bytes, hidden: Hidden) -> bytes:
    """Return arguments with every value masked that is not known to be harmless.

    What the schema does not name is masked with its name: a model that misspells a name sends the secret all the same.
    """
    try:
        members, _ = decode(arguments)
    except ArgumentsError:
        return json.dumps(MASK).encode()
    kept: dict[str, Any] = {}
    for name, value in members.items():
        if name in hidden.shown:
            kept[name] = value
        else:
            kept[name if name in hidden.arguments else MASK] = MASK
    return json.dumps(kept, separators=(",", ":")).encode()
