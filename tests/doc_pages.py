"""What the README and the pages of docs/ show, taken apart so that tests can run it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from source_tree import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(msgspec.Struct, frozen=True):
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def test_name(self) -> str | None:
        """The file name of a block that is a test module, written in its first line."""
        found = re.match(r"# (test_\w+\.py)\n", self.text)
        return found[1] if found else None

    @property
    def is_program(self) -> bool:
        """Whether it is a whole program."""
        return "\nanyio.run(" in self.text


def blocks(*languages: str) -> Iterator[Block]:
    """Yield the blocks of all pages in these languages."""
    for page in PAGES:
        yield from blocks_of(page, *languages)


def blocks_of(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the blocks of one page in these languages."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found[1] in languages:
            line = text.count("\n", 0, found.start()) + 2
            yield Block(page.relative_to(ROOT).as_posix(), line, found[1], found[2])


def fragments(page: Path) -> list[Block]:
    """Return the Python blocks of a page that belong together: neither programs nor test modules."""
    return [one for one in blocks_of(page, "python") if not one.is_program and one.test_name is None]


async def run_block(block: Block, names: dict[str, Any]) -> None:
    """Run a fragment in a namespace; it may await."""
    lines = "\n" * (block.line - 1) + block.text
    code = compile(lines, ROOT / block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result
