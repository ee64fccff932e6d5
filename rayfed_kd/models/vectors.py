"""Models as flat vectors: which tensors lie where, sums and means, and vectors read from files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.errors import MisuseError, RecipeError, kind_of

Role = Literal["parameter", "buffer"]


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of a model, in the order in which its numbers lie in the vector.

    Attributes:
        name: as the module calls it, as `block1.norm.running_var`.
        shape: as it lies; a 4-D weight is [out, height, width, in].
        role: a parameter that trains, or a buffer that training changes.
    """

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The tensors of a vector, one after another without a gap."""

    tensors: tuple[PlacedTensor, ...]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(tensor.size for tensor in self.tensors)

    def placed(self) -> Iterator[tuple[PlacedTensor, int, int]]:
        """Each tensor that has numbers, with its first index and the one after its last."""
        start = 0
        for tensor in self.tensors:
            if tensor.size:
                yield tensor, start, start + tensor.size
            start += tensor.size

    def without(self, roles: Collection[Role]) -> Layout:
        """The tensors that have none of these roles."""
        return Layout(tuple(tensor for tensor in self.tensors if tensor.role not in roles))

    def places(self, roles: Collection[Role]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[size] bool: which numbers of the vector are of tensors with these roles."""
        sizes = [tensor.size for tensor in self.tensors]
        return np.repeat(np.array([tensor.role in roles for tensor in self.tensors], bool), sizes)

    def within(self, stretches: Sequence[slice]) -> Layout:
        """The layout of these stretches of the vector, one after another; none cuts a tensor."""
        return Layout(
            tuple(
                tensor
                for stretch in stretches
                for tensor, start, stop in self.placed()
                if stretch.start <= start and stop <= stretch.stop
            )
        )


def check_vector(vector: Any, length: int, architecture: str, what: str, least_bytes: int = 1) -> None:
    """Check that a model is a vector of its architecture.

    Args:
        vector: the model.
        length: of the architecture's vectors.
        architecture: its name.
        what: who gave it, for the message.
        least_bytes: of one number.
    Raises: MisuseError
    """
    is_tensor = isinstance(vector, Tensor)
    floats = is_tensor and vector.is_floating_point() and vector.element_size() >= least_bytes
    if not floats or vector.shape != (length,):
        kind = f"{vector.dtype} {list(vector.shape)}" if is_tensor else kind_of(vector)
        raise MisuseError(f"{what} {kind}; expected the {length} floats of {architecture!r}")


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
