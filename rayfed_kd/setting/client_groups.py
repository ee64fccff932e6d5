"""How many clients train as one program (`local.vectorise`): decided before round 1, by the recipe alone.

Neither engine nor placement nor time decides, so that a recipe has the same bits everywhere: in one process,
with an actor for each client, on any number of hosts. A group runs on a host of its first client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.batchable import unbatchable
from rayfed_kd.protocol import Method
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.setting.modules.tiny_training import is_tiny
from rayfed_kd.timing import Schedule

Builders = Mapping[str, Callable[[], nn.Module]]
BY_SHAPE = 25  # clients in a group by shape; on two cores larger groups gain little more


def decide_group_size(
    recipe: Recipe,
    method: Method[Any, Any],
    schedule: Schedule,
    sizes: NDArray[np.int64],
    builders: Builders,
) -> int:
    """Most clients in a group; 1: each trains by itself.

    Args:
        recipe: says what is asked for.
        method, schedule: as the recipe names them.
        sizes: [K] training samples of each client.
        builders: architecture name -> what makes the module; all that a step may train.
    Raises: RecipeError if a number is asked for, and clients cannot train as one program.
    """
    local = recipe.local
    if local.vectorise == "off":
        return 1
    if local.vectorise == "by_shape":
        tiny = not local.compile and is_tiny(local, sizes, builders)
        return BY_SHAPE if tiny and not _obstacle(recipe, method, schedule, builders) else 1
    reason = _obstacle(recipe, method, schedule, builders)
    if reason:
        raise RecipeError(
            f"local.vectorise = {local.vectorise}: {reason}; expected off, or by_shape, which is off then"
        )
    return local.vectorise


def _obstacle(recipe: Recipe, method: Method[Any, Any], schedule: Schedule, builders: Builders) -> str:
    """Why clients cannot train as one program; empty if they can."""
    name = f"schedule.name = {recipe.schedule.name!r}"
    if schedule.asynchronous:
        return f"{name} asks clients one at a time"
    if not schedule.drops_late:
        return f"{name} keeps late replies, whose clients are asked again alone after a crash"
    if not method.trains_in_groups:
        return f"the class of {recipe.method.name} does not say by `group_training` that its training batches"
    with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
        for architecture, build in builders.items():
            fault = unbatchable(build())
            if fault:
                return f"in {architecture!r}, {fault}"
    return ""
