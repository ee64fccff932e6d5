"""The registered schedules and clocks, by name, and the size of a cohort.

Listing names loads nothing. `rayfed_kd.timing.reading` imports a schedule's or a clock's class, with the
model of its options, when a recipe names it.
"""

from __future__ import annotations

from rayfed_kd.recipe.registry import Registry, in_modules
from rayfed_kd.recipe.schema import Recipe

SCHEDULES = Registry(
    in_modules(
        "rayfed_kd.timing",
        schedule="sync:Synchronous",
        schedules="quorum:Quorum buffered:Buffered fedbuff:FedBuff fedasync:FedAsync",
    ),
    "rayfed_kd.timing:Schedule",
)
CLOCKS = Registry(
    in_modules(
        "rayfed_kd.timing",
        clock="none:NoClock real:RealClock",
        clocks="constant:ConstantClock lognormal:LogNormalClock trace:TraceClock",
    ),
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
