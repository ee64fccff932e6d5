"""How Hypothesis runs here: the same examples each time, in whatever time they take, and nothing is kept."""

from hypothesis import HealthCheck, settings

STEADY = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
