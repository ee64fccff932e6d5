"""Everything of a run that imports Ray: the engine on actors, sessions, placement, machines."""

# Before any module of this room imports Ray: Ray decides at its import whether it listens on loopback only.
from cluster.ray_backend import private_ray  # noqa: F401
