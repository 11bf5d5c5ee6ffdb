"""Exceptions of a block's own body, out of a task group without a group around them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio


class BareBody:
    """Hold back what a block raised until the task group around it has ended, then raise it as it was.

    `with bare: yield` inside the group, `bare.reraise()` after it. Cancellation and the end of a generator pass.
    """

    def __init__(self) -> None:
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<BareBody {type(self._failure).__name__}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, (GeneratorExit, anyio.get_cancelled_exc_class())):
            return False
        self._failure = error
        return True

    def reraise(self) -> None:
        """Raise what the block raised, if it did."""
        if self._failure is not None:
            raise self._failure
