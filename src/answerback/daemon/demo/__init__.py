"""The demonstration: two workers are killed at the same point of the same script, and a bank's ledger is counted."""
