"""The registered schedules and clocks, by name, and the size of a cohort.

Listing names loads nothing. `rayfed_kd.setting.timing` imports a schedule's or a clock's class, with the
model of its options, when a recipe names it.
"""

from __future__ import annotations

from rayfed_kd.recipe.schema import Recipe

SCHEDULES = {
    "sync": "cluster.server.schedules:Synchronous",
    "quorum": "cluster.server.schedules:Quorum",
    "buffered": "cluster.server.schedules:Buffered",
    "fedbuff": "cluster.server.schedules:FedBuff",
    "fedasync": "cluster.server.schedules:FedAsync",
}
CLOCKS = {
    "none": "cluster.server.clock:NoClock",
    "constant": "cluster.server.clock:ConstantClock",
    "lognormal": "cluster.server.clock:LogNormalClock",
    "trace": "cluster.server.clock:TraceClock",
    "real": "cluster.server.clock:RealClock",
}


def cohort_size(recipe: Recipe) -> int:
    """m = max(1, round(C K)), or the given count."""
    sampling = recipe.sampling
    if sampling.count is not None:
        return sampling.count
    assert sampling.fraction is not None
    return max(1, round(sampling.fraction * recipe.partition.clients))


def sampling_rate(recipe: Recipe) -> float:
    """q, the share of the clients that a round expects, with `poisson` on average."""
    sampling, clients = recipe.sampling, recipe.partition.clients
    if sampling.poisson and sampling.fraction is not None:
        return sampling.fraction
    return cohort_size(recipe) / clients
