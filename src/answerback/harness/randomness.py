"""Every random choice and every id of the harness, drawn from one seed."""

from __future__ import annotations

import hashlib
import random
import string


class Randomness:
    """Give out ids and choices; the same seed and the same requests give the same ones.

    Args:
        seed: what everything is drawn from.
        boot: how often this state was started before. It is part of every draw, so that ids given out after a
            restart never meet those given out before, though no counter is stored.
    """

    def __init__(self, *, seed: int = 0, boot: int = 0) -> None:
        self.seed = seed
        self.boot = boot
        self.choices = random.Random(f"{seed}/{boot}")
        self._counts: dict[str, int] = {}
        # Padding is drawn per frame and reader, in an order that is the scheduler's; so it has a source of its own.
        self._lengths = random.Random(f"{seed}/padding")
        self._padding = "".join(self._lengths.choices(string.ascii_letters + string.digits, k=64))

    def __repr__(self) -> str:
        return f"<Randomness seed {self.seed}, boot {self.boot}, {sum(self._counts.values())} ids>"

    def restart(self, boot: int) -> None:
        """Draw as the start number `boot` of the same state from now on."""
        self.boot = boot
        self.choices = random.Random(f"{self.seed}/{boot}")
        self._counts.clear()

    def id(self, prefix: str) -> str:
        """Return a new id such as `sess_4f…`: the prefix and 24 hex digits."""
        count = self._counts[prefix] = self._counts.get(prefix, 0) + 1
        digest = hashlib.sha256(f"{self.seed}/{self.boot}/{prefix}/{count}".encode()).hexdigest()
        return f"{prefix}_{digest[:24]}"

    def event_id(self) -> str:
        """Return a new event id; events are many, so it is a plain count."""
        count = self._counts["event"] = self._counts.get("event", 0) + 1
        return f"event_{self.boot}_{count}"

    def request_id(self) -> str:
        """Return `req_` and 32 hex digits, the form the service uses."""
        count = self._counts["req"] = self._counts.get("req", 0) + 1
        return "req_" + hashlib.sha256(f"{self.seed}/{self.boot}/req/{count}".encode()).hexdigest()[:32]

    def padding(self) -> str:
        """Return 1 to 48 alphanumeric characters, the `obfuscation` of a frame."""
        return self._padding[: self._lengths.randint(1, 48)]

    def chance(self) -> bool:
        """Toss a coin."""
        return self.choices.random() < 0.5
