"""Sums and means of models as flat vectors, and vectors read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.errors import RecipeError


def weighted_mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_k w_k v_k / sum_k w_k, added in the given order in float64; float32 back.

    Args:
        vectors: each [P]; may be a lazy sequence, only one is held at a time.
        weights: one each, not all zero.
    """
    total = weighted_sum(vectors, weights)
    return total.div_(float(sum(weights))).to(torch.float32)


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Add weighted vectors in the given order: sum_k w_k v_k.

    Args:
        vectors: each [P]; may be a lazy sequence, only one is held at a time.
        weights: one each.
    Returns: [P] float64, on the first vector's device.
    Raises: ValueError if there is no vector, or there are not as many weights.
    """
    if len(vectors) != len(weights) or len(weights) == 0:
        raise ValueError(f"{len(vectors)} vectors and {len(weights)} weights: expected as many, at least one")
    first = vectors[0]
    added = WeightedSum(first.shape, first.device)
    added.add(first, weights[0])
    del first  # one at a time: a lazy sequence fetches or decodes each anew
    for index in range(1, len(weights)):
        added.add(vectors[index], weights[index])
    return added.total


class WeightedSum:
    """A weighted sum that grows vector by vector.

    Args:
        shape: of each vector.
        device: where it is added.

    Attributes:
        total: the sum so far, float64.
    """

    def __init__(self, shape: torch.Size, device: torch.device | str = "cpu") -> None:
        self.total = torch.zeros(shape, dtype=torch.float64, device=device)
        self._exact = torch.empty_like(self.total)

    def add(self, vector: Tensor, weight: float) -> None:
        """Add `weight` times a vector of the same shape and any type."""
        self.total.add_(self._exact.copy_(vector), alpha=float(weight))


def read_vector(path: str | Path, length: int, key: str) -> Tensor:
    """Read a model's vector from a .npy file.

    Args:
        path: of the file; nothing in it is unpickled.
        length: of the vector.
        key: the recipe's key that names the file.
    Returns: [length] float32, on the CPU.
    Raises: RecipeError at `key` if the file cannot be read or holds anything else.
    """
    try:
        vector = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} cannot be read ({type(error).__name__})", path=key) from None
    if vector.dtype != np.float32 or vector.shape != (length,):
        raise RecipeError(
            f"{path} holds {vector.dtype} {list(vector.shape)}, expected float32 [{length}]", path=key
        )
    return torch.from_numpy(vector)
