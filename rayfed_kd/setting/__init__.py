"""Builds a recipe's objects: method, data, partition, devices, attacks, the identity of the code."""
