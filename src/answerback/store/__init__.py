"""Where the journal lives: one protocol, a SQLite store for real use and a memory store for tests."""
