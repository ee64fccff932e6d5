"""The Ray backend of a run: the engine on actors, sessions, placement, machines."""

# Before any module of this room imports Ray: Ray decides at its import whether it listens on loopback only.
from rayfed_kd.cluster.ray_backend import private_ray  # noqa: F401
