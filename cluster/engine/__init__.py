"""What runs a client's step: calls, the host, the engine's interface, and the engine in this process."""
