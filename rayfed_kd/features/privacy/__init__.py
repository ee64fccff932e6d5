"""Differential privacy of clients: what is covered, how it is clipped and noised, what epsilon it has."""
