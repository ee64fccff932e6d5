"""FedKTL: the method, and how its generator is aligned with the prototypes."""
