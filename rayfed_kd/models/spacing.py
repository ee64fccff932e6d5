"""A model's vector in a GPU's memory, where each tensor has to begin at an aligned address.

cuDNN's BatchNorm, for one, stops with "misaligned address" at a tensor that begins anywhere else. What
travels and what methods see is the vector without gaps, on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

ALIGNED = 64  # numbers of float32: 256 bytes, as CUDA aligns what it allocates


@dataclass(frozen=True)
class Spacing:
    """Which tensors of a vector lie where in memory.

    Attributes:
        sizes: numbers of each, one after another in the vector.
    """

    sizes: tuple[int, ...]

    @cached_property
    def stored(self) -> tuple[slice, ...]:
        """Where in the memory each lies; what is between them is 0."""
        starts = accumulate((-(-size // ALIGNED) * ALIGNED for size in self.sizes), initial=0)
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=False))

    @property
    def length(self) -> int:
        """Numbers of the memory."""
        return self.stored[-1].stop if self.sizes else 0

    def spread(self, vector: Tensor) -> Tensor:
        """The memory, [length], of a vector on the same device."""
        memory = vector.new_zeros(self.length)
        for part, stored in zip(torch.split(vector, list(self.sizes)), self.stored, strict=True):
            memory[stored] = part
        return memory

    def gathered(self, memory: Tensor) -> Tensor:
        """The vector of a memory, [length]; copied."""
        return torch.cat([memory[stored] for stored in self.stored])

    def within(self, part: slice, last: int) -> tuple[slice, Spacing]:
        """Where a part of the vector's first `last` numbers lies, and the spacing of that part alone.

        Args:
            part: begins and ends between tensors; without an end it goes to `last`.
        """
        before, until = (
            sum(end <= place for end in accumulate(self.sizes))
            for place in (part.start or 0, last if part.stop is None else part.stop)
        )
        spacing = Spacing(self.sizes[before:until])
        begin = self.stored[before].start if spacing.sizes else 0
        return slice(begin, begin + spacing.length), spacing
