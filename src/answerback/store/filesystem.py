"""What must be true of the place a store file lies in."""

from __future__ import annotations

import os
import re
from pathlib import Path

from answerback.errors import StoreUnavailableError

NETWORK_FILE_SYSTEMS = frozenset(
    [
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb2",
        "smb3",
        "smbfs",
    ]
)
"""Types in /proc/mounts on which several hosts may write: the shared memory of a WAL does not reach across them
(sqlite.org/wal.html) and their locks cannot be relied on."""

_MOUNTS = Path("/proc/mounts")


def check_place(path: Path) -> None:
    """Refuse a path where a store cannot keep its promises.

    Network file systems are found where /proc/mounts exists; elsewhere (macOS, BSD) they are not recognised and the
    caller has to know.

    Raises:
        StoreUnavailableError: no such directory, no permission, or a network file system.
    """
    folder = path.parent
    if not folder.is_dir():
        raise StoreUnavailableError(f"{folder} is not a directory: make it, or give another path")
    if path.is_dir():
        raise StoreUnavailableError(f"{path} is a directory: give the path of a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreUnavailableError(f"{folder} cannot be written by this user: SQLite keeps its log beside the file")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailableError(f"{path} cannot be written by this user: change its permissions, or move it")
    kind = file_system(folder, mounts=_read_mounts())
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailableError(f"{folder} is on a network file system ({kind}): put the store on a local disk")


def file_system(folder: Path, *, mounts: str) -> str | None:
    """Return the type of the file system `folder` (absolute, without links) lies on, by the text of /proc/mounts."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescape(fields[1]))
        # Of two mounts on one point the later one hides the earlier.
        if folder.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), fields[2])
    return None if best is None else best[1]


def _unescape(field: str) -> str:
    """Undo the octal escapes of /proc/mounts: a space is written as a backslash and 040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read_mounts() -> str:
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
