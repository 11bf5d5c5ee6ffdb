"""Put another function in place of one of the product's, in a worker process."""

from __future__ import annotations

from typing import Any


def replace(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute that exists; a renamed one must not leave a hook without effect.

    Raises:
        AttributeError: there is no such attribute.
    """
    if not hasattr(owner, name):
        raise AttributeError(f"{owner!r} has no {name!r} any more: the table that names it must follow")
    setattr(owner, name, value)
