"""Flat modules of one architecture, stacked: row i is module i, and one call computes all rows.

A module sees its own row of every parameter and buffer through `torch.vmap`, so its forward pass is the
code that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from rayfed_kd.models.flat_module import FlatModule, view_as


class StackedModules:
    """Copies of `modules`' vectors as rows, [n, num_elements]; the modules stay as they are.

    Args:
        modules: of one architecture, at least one.

    Attributes:
        storage: [n, num_elements], the rows, as they lie in the modules' memory.
        gradients: [n, num_parameters], room for their gradients, likewise.
        norms: the first module's GroupNorm layers.
    """

    def __init__(self, modules: Sequence[FlatModule]) -> None:
        self._modules = list(modules)
        first = modules[0]
        self._parameters, self._buffers, self._places = first.trained, first.buffers, first.places
        # Not its subclasses, which may compute something else than `_normalised` does.
        self.norms = [m for m in first.module.modules() if type(m) is nn.GroupNorm]
        self.storage = torch.stack([module.storage for module in modules])
        self.gradients = self.storage.new_zeros(len(modules), len(first.gradients))

    def parameters(self, rows: Tensor) -> list[Tensor]:
        """`rows`, [m, num_parameters] or wider, seen as m modules' parameters: [m, ...] each, in order."""
        return [view_as(rows[:, self._places[slot.name]], slot.shape) for slot in self._parameters]

    def buffers_of(self, rows: slice | Tensor) -> list[Tensor]:
        """The buffers of the modules `rows`, [m, ...] each, in order."""
        return [self.storage[rows, self._places[slot.name]].view(-1, *slot.shape) for slot in self._buffers]

    def keep_buffers(self, where: slice | Tensor, buffers: Sequence[Tensor]) -> None:
        """Write `buffers`, [m, ...] each, in order, into the rows `where`."""
        for slot, buffer in zip(self._buffers, buffers, strict=True):
            self.storage[where, self._places[slot.name]] = buffer.reshape(len(buffer), -1)

    @contextmanager
    def standing_in(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Iterator[None]:
        """Inside the `with` block the first module computes with these tensors instead of its own."""
        every = (*self._parameters, *self._buffers)
        originals = [slot.now for slot in every]
        try:
            for slot, tensor in zip(every, (*parameters, *buffers), strict=True):
                slot.assign(tensor)
            for layer in self.norms:
                # An attribute of the layer hides its class' method until it is removed.
                layer.__dict__["forward"] = partial(_normalised, layer)
            yield
        finally:
            for layer in self.norms:
                layer.__dict__.pop("forward", None)
            for slot, original in zip(every, originals, strict=True):
                slot.assign(original)

    def hand_back(self) -> None:
        """Copies every row into its module."""
        for place, module in enumerate(self._modules):
            module.storage.copy_(self.storage[place])


def _normalised(layer: nn.GroupNorm, images: Tensor) -> Tensor:
    """What a GroupNorm layer computes, of plain operations: torch's own fails on channels-last in vmap."""
    # In float32, as torch's own is under autocast: a mean of many bfloat16 numbers would lose digits.
    grouped = images.float().reshape(len(images), layer.num_groups, -1)
    # correction=0: GroupNorm divides by the number of elements, not by one less.
    variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
    scaled = ((grouped - mean) * (variance + layer.eps).rsqrt()).view(images.shape)
    shape = (1, -1, *([1] * (images.dim() - 2)))
    return scaled * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else scaled
