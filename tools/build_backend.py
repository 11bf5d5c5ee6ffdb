"""Build with uv_build, and add the top-level links to the source distribution.

uv_build packs no links to directories (it fails on them, seen with 0.13.9), and leaving `actors`, `handlers` and `store`
out would make an unpacked source distribution another house than a clone. Everything else is uv_build's own.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uv_build
from uv_build import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOMS = ("actors", "handlers", "store")


def build_sdist(sdist_directory: str, config_settings: Mapping[Any, Any] | None = None) -> str:
    """Build the source distribution and return its file name."""
    name: str = uv_build.build_sdist(sdist_directory, config_settings)
    archive = Path(sdist_directory, name)
    content = io.BytesIO(gzip.decompress(archive.read_bytes()))
    with tarfile.open(fileobj=content, mode="a") as tar:
        for room in ROOMS:
            link = tarfile.TarInfo(f"{name.removesuffix('.tar.gz')}/{room}")
            link.type, link.linkname = tarfile.SYMTYPE, f"src/answerback/{room}"
            tar.addfile(link)
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=0))
    return name
