"""A model's vector in a GPU's memory, where each tensor has to begin at an aligned address.

cuDNN's BatchNorm, for one, stops with "misaligned address" at a tensor that begins anywhere else. What
travels and what methods see is the vector without gaps, on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 64  # numbers of float32: 256 bytes, as CUDA aligns what it allocates


@dataclass(frozen=True)
class Spacing:
    """Which stretches of a vector lie where in memory.

    Attributes:
        dense: of the vector, one after another.
        stored: of the memory, one for each.
        length: of the memory; what lies between the stretches is 0.
    """

    dense: tuple[slice, ...]
    stored: tuple[slice, ...]
    length: int

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Spacing:
        """Of tensors with so many numbers, each at an aligned place."""
        dense, stored, last, length = [], [], 0, 0
        for size in sizes:
            dense.append(slice(last, last + size))
            stored.append(slice(length, length + size))
            last, length = last + size, length + -(-size // ALIGNED) * ALIGNED
        return cls(tuple(dense), tuple(stored), length)

    def spread(self, vector: Tensor) -> Tensor:
        """The memory, [length], of a vector on the same device."""
        memory = vector.new_zeros(self.length)
        for dense, stored in zip(self.dense, self.stored, strict=True):
            memory[stored] = vector[dense]
        return memory

    def gathered(self, memory: Tensor) -> Tensor:
        """The vector of a memory, [length]; copied."""
        return torch.cat([memory[stored] for stored in self.stored])

    def within(self, part: slice, last: int) -> tuple[slice, Spacing]:
        """Where a part of the vector's first `last` numbers lies, and the spacing of that part alone.

        Args:
            part: begins and ends between tensors; without an end it goes to `last`.
        """
        first, stop = part.start or 0, last if part.stop is None else part.stop
        pairs = [
            (dense, stored)
            for dense, stored in zip(self.dense, self.stored, strict=True)
            if first <= dense.start and dense.stop <= stop
        ]
        if not pairs:
            return slice(0, 0), Spacing((), (), 0)
        begin, end = pairs[0][1].start, pairs[-1][1].stop
        dense_part = tuple(slice(dense.start - first, dense.stop - first) for dense, _ in pairs)
        stored_part = tuple(slice(stored.start - begin, stored.stop - begin) for _, stored in pairs)
        return slice(begin, end), Spacing(dense_part, stored_part, end - begin)
