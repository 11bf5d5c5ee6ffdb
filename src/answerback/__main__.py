"""`python -m answerback`, the same program as `answerback`."""

from __future__ import annotations

from answerback.daemon.cli import main

if __name__ == "__main__":
    main()
