"""The actor kernel: one actor a session, decisions as pure functions, effects performed by thin shells."""
