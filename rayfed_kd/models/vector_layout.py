"""Which tensors lie where in a model's flat vector; see rayfed_kd/models/flat_module.py."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
