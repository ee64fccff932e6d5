"""The registered schedules and clocks, by name, and the size of a cohort.

Listing names loads nothing. `rayfed_kd.timing.reading` imports a schedule's or a clock's class, with the
model of its options, when a recipe names it.
"""

from __future__ import annotations

from rayfed_kd.recipe.registry import Registry
from rayfed_kd.recipe.schema import Recipe

SCHEDULES = Registry(
    {
        "sync": "rayfed_kd.timing.schedule:Synchronous",
        "quorum": "rayfed_kd.timing.schedules:Quorum",
        "buffered": "rayfed_kd.timing.schedules:Buffered",
        "fedbuff": "rayfed_kd.timing.schedules:FedBuff",
        "fedasync": "rayfed_kd.timing.schedules:FedAsync",
    },
    "rayfed_kd.timing:Schedule",
)
CLOCKS = Registry(
    {
        "none": "rayfed_kd.timing.clock:NoClock",
        "constant": "rayfed_kd.timing.clocks:ConstantClock",
        "lognormal": "rayfed_kd.timing.clocks:LogNormalClock",
        "trace": "rayfed_kd.timing.clocks:TraceClock",
        "real": "rayfed_kd.timing.clock:RealClock",
    },
    "rayfed_kd.timing:Clock",
)


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
