"""How many runs of a comparison or a search have room at a time, by pure functions of recipe and machines."""

from __future__ import annotations

from collections.abc import Sequence

from rayfed_kd.cluster.ray_backend.placement import plan_hosts
from rayfed_kd.cluster.ray_backend.resources import (
    Node,
    amounts,
    divided,
    shown_machines,
    shown_request,
    total,
)
from rayfed_kd.errors import RecipeError
from rayfed_kd.recipe.schema import Recipe


def runs_at_a_time(option: str, limit: int | None, runs: int, recipe: Recipe, nodes: Sequence[Node]) -> int:
    """How many of so many runs go on at a time.

    Args:
        option: what the user asks by, as --jobs.
        limit: the user's number of them; None: as many as have room.
        runs: how many there are.
        recipe: of the runs.
        nodes: the machines.
    Raises: RecipeError, naming the option, if as many as were asked for have no room.
    """
    if limit is None:
        return rooms(recipe, nodes, runs)
    wanted = min(runs, limit)
    if wanted > 1 and not _has_room(recipe, divided(nodes, wanted)):
        raise RecipeError(
            f"{option} {wanted}: one part in {wanted} of every machine does not hold a server of "
            f"{shown_request(recipe.placement.server)} and a client actor of "
            f"{shown_request(recipe.placement.client)}, on {shown_machines(nodes)}; "
            f"expected at most {rooms(recipe, nodes, wanted)}"
        )
    return wanted


def rooms(recipe: Recipe, nodes: Sequence[Node], most: int) -> int:
    """How many runs at a time have room, each on its part of every machine.

    Args:
        recipe: of the runs.
        nodes: the machines.
        most: as many as are wanted.
    Returns: at least 1, also where not even one has room: planning it says why.
    """
    needs = total(amounts(actor) for actor in (recipe.placement.client, recipe.placement.server))
    has = total({"CPU": node.cpus, "GPU": node.gpus, **node.resources} for node in nodes)
    # 1e-9 here and below: requests such as 0.1 CPU are inexact in floats.
    fits = [int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items()]
    bound = min(most, *fits) if fits else min(most, len(nodes))
    # All machines together may have room for more than the parts of each: an actor lies on one of them.
    return next((runs for runs in range(bound, 1, -1) if _has_room(recipe, divided(nodes, runs))), 1)


def _has_room(recipe: Recipe, nodes: Sequence[Node]) -> bool:
    try:
        plan_hosts(recipe, 1, nodes)
    except RecipeError:
        return False
    return True
