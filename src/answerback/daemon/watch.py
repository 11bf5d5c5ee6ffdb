"""Notice when code changes: the files of a folder by time and size, looked at now and then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".toml", ".yaml", ".yml")
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
MOST_FILES = 5_000
"""Files looked at; a folder with more is somebody's home, not an app."""


class Watch:
    """Remembers what the files of a folder looked like. Every method blocks for the time of a directory walk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._seen = self._look()

    def __repr__(self) -> str:
        return f"<Watch {self.folder} {len(self._seen)} files>"

    def __len__(self) -> int:
        return len(self._seen)

    def changed(self) -> list[str]:
        """Return the files that are new, gone or different since the last question."""
        now = self._look()
        names = sorted(name for name in now.keys() | self._seen.keys() if now.get(name) != self._seen.get(name))
        self._seen = now
        return names

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._files():
            if len(found) >= MOST_FILES:
                break
            try:
                facts = path.stat()
            except OSError:
                # Gone between listing and looking, as editors do when they save.
                continue
            found[str(path.relative_to(self.folder))] = (facts.st_mtime_ns, facts.st_size)
        return found

    def _files(self) -> Iterator[Path]:
        for root, folders, names in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
            yield from (Path(root, name) for name in sorted(names) if name.endswith(SUFFIXES))
