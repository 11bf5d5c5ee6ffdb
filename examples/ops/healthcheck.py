"""Exit 0 when the daemon on this machine is alive. The standard library only: a check must not cost what it checks."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

PORT = os.environ.get("ANSWERBACK_ADMIN_PORT", "9100")

try:
    # /livez says whether the process works; whether the API is up is no reason to kill it.
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/livez", timeout=3) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
    print(f"not alive: {error}", file=sys.stderr)
    sys.exit(1)
