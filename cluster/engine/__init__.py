"""Runs clients' steps: calls and results, the host, the engine's interface, the engine in this process."""
