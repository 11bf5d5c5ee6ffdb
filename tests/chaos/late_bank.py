"""A bank that got the request and is slow: run as a process of its own, it outlives whoever asked.

`python late_bank.py LOG LINE SECONDS` appends the line (an effect) after so many seconds, or as soon as somebody has
concluded from the log that nothing happened: the worst moment there is.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

POLL = 0.01


def main(log: Path, line: str, seconds: float) -> None:
    """Wait, then carry the effect out."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and b'"verdict"' not in log.read_bytes():
        time.sleep(POLL)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, line.encode() + b"\n")
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
