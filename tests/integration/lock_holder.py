"""Hold SQLite's write lock on a file until stdin ends; run by `test_case_store_trouble` as a program."""

from __future__ import annotations

import sqlite3
import sys

if __name__ == "__main__":
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=5)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()
