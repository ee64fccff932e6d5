"""A recipe made of objects: method, data, partition, devices, attacks, the identity of the code."""
