"""The loopback HTTP of a daemon: probes, metrics, and what a person or a command asks of it."""
