"""How many clients train as one program (`local.vectorise`): decided before round 1, by the recipe alone.

Neither engine nor placement nor time decides, so that a recipe has the same bits everywhere: in one process,
with an actor for each client, on any number of hosts. A group runs on a host of its first client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.batchable import unbatchable
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.local_training import LocalRecipe
from rayfed_kd.timing import Schedule

Builders = Mapping[str, Callable[[], nn.Module]]
BY_SHAPE = 25  # clients in a group by shape; on two cores larger groups gain little more
# Where a batched step was at least twice as fast as the same steps one by one, on one core: a step of up to
# so many products in its forward pass. Larger steps gain less, and convolutions lose
# (docs/measured/performance.md).
MOST_PRODUCTS = 2**20
# A client with more steps keeps a host busy long enough that all hosts should share the cohort.
MOST_STEPS = 32
# Only batches of one size step together. An even split leaves some clients one sample more. With sizes
# further apart (Dirichlet, 9 to 99 samples, batches of 16) groups took as long as single clients, or longer.
MOST_DIFFERENCE = 1


class Groups(NamedTuple):
    """How clients train together.

    Attributes:
        size: most clients in a group; 1: each trains by itself.
        note: where the recipe asks for groups and none can be, why not; else empty.
    """

    size: int
    note: str = ""


def decide_groups(
    recipe: Recipe, method: Method[Any, Any], schedule: Schedule, sizes: NDArray[np.int64], builders: Builders
) -> Groups:
    """How many clients train as one program.

    Args:
        recipe: says what is asked for.
        method, schedule: as the recipe names them.
        sizes: [K] training samples of each client.
        builders: architecture name -> what makes the module; all that a step may train.
    Raises: RecipeError if a number is asked for, and the schedule has no groups.
    """
    local = recipe.local
    if local.vectorise == "off":
        return Groups(1)
    apart = _schedule_without_groups(recipe, schedule)
    if local.vectorise == "by_shape":
        tiny = not apart and is_tiny(local, sizes, builders)
        return Groups(BY_SHAPE if tiny and not _obstacle(recipe, method, builders) else 1)
    if apart:
        raise RecipeError(
            f"local.vectorise = {local.vectorise}: {apart}; expected off, or by_shape, which is off then"
        )
    reason = _obstacle(recipe, method, builders)
    if reason:
        return Groups(1, f"local.vectorise = {local.vectorise}: clients train one by one: {reason}")
    return Groups(local.vectorise)


def _schedule_without_groups(recipe: Recipe, schedule: Schedule) -> str:
    """Why clients are never asked together; empty if they are."""
    name = f"schedule.name = {recipe.schedule.name!r}"
    if schedule.asynchronous:
        return f"{name} asks clients one at a time"
    if not schedule.drops_late:
        return f"{name} keeps late replies, whose clients are asked again alone after a crash"
    return ""


def _obstacle(recipe: Recipe, method: Method[Any, Any], builders: Builders) -> str:
    """Why method or models do not train as one program; empty if they do."""
    if not method.group_training:
        return f"the class of {recipe.method.name} does not say by `group_training` that its training batches"
    with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
        for architecture, build in builders.items():
            fault = unbatchable(build())
            if fault:
                return f"in {architecture!r}, {fault}"
    return ""


def is_tiny(local: LocalRecipe, sizes: NDArray[np.int64], builders: Builders) -> bool:
    """Whether all clients make the same few steps on small models of linear layers: `by_shape` asks this.

    Then calls cost more than arithmetic. The answer follows from the recipe, the split and the shapes of
    parameters alone, so that every machine and every resumed run gives the same one.

    Args:
        local: batch size and epochs.
        sizes: [K] training samples of each client, one or more.
        builders: architecture name -> what makes the module; all that a step may train.
    """
    most_samples = int(sizes.max())
    batches = local.batch_sizes(most_samples)
    if not 0 < local.steps_of(most_samples) <= MOST_STEPS or most_samples - sizes.min() > MOST_DIFFERENCE:
        return False
    rows = max(batches)
    with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
        return all(_is_small(build(), rows) for build in builders.values())


def _is_small(module: nn.Module, rows: int) -> bool:
    """Whether all parameters are those of linear layers, and a batch of so many rows needs few products."""
    owners = [part for part in module.modules() if [*part.parameters(recurse=False)]]
    products = rows * sum(part.weight.numel() for part in owners if isinstance(part, nn.Linear))
    return all(type(part) is nn.Linear for part in owners) and products <= MOST_PRODUCTS
