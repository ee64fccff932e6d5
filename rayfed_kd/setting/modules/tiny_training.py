"""Whether clients' local training is so small that calls cost more than arithmetic.

`local.vectorise: by_shape` asks this. The answer follows from the recipe, the split and the shapes of
parameters alone, so that every machine and every resumed run gives the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rayfed_kd.recipe.sections.local_training import LocalRecipe

# Where a batched step was at least twice as fast as the same steps one by one, on one core: a step of up to
# so many products in its forward pass. Larger steps gain less, and convolutions lose (docs/performance.md).
MOST_PRODUCTS = 2**20
# A client with more steps keeps a host busy long enough that all hosts should share the cohort.
MOST_STEPS = 32
# Only batches of one size step together. An even split leaves some clients one sample more. With sizes
# further apart (Dirichlet, 9 to 99 samples, batches of 16) groups took as long as single clients, or longer.
MOST_DIFFERENCE = 1


def is_tiny(
    local: LocalRecipe, sizes: NDArray[np.int64], builders: Mapping[str, Callable[[], nn.Module]]
) -> bool:
    """Whether all clients make the same few steps on small models of linear layers.

    Args:
        local: batch size and epochs.
        sizes: [K] training samples of each client, one or more.
        builders: architecture name -> what makes the module; all that a step may train.
    """
    most_samples = int(sizes.max())
    batches = local.batch_sizes(most_samples)
    steps = local.epochs * len(batches)
    if not 0 < steps <= MOST_STEPS or most_samples - sizes.min() > MOST_DIFFERENCE:
        return False
    rows = max(batches)
    with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
        return all(_is_small(build(), rows) for build in builders.values())


def _is_small(module: nn.Module, rows: int) -> bool:
    """Whether all parameters are those of linear layers, and a batch of so many rows needs few products."""
    owners = [part for part in module.modules() if [*part.parameters(recurse=False)]]
    products = rows * sum(part.weight.numel() for part in owners if isinstance(part, nn.Linear))
    return all(type(part) is nn.Linear for part in owners) and products <= MOST_PRODUCTS
