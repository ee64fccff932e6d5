"""A model of the server's own: a larger one on public samples, or one behind the clients' first layers."""
