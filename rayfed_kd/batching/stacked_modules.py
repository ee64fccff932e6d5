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
        storage: [n, num_elements], the rows.
        gradients: [n, num_parameters], room for their gradients.
        integers: modules' integer buffers, [n, ...] each.
    """

    def __init__(self, modules: Sequence[FlatModule]) -> None:
        self._modules = list(modules)
        first = modules[0]
        self._parameters, self._buffers = _places(first.module)
        # Not its subclasses, which may compute something else than `_normalised` does.
        self._norms = [m for m in first.module.modules() if type(m) is nn.GroupNorm]
        self.storage = torch.stack([module.storage for module in modules])
        self.gradients = torch.zeros(len(modules), first.num_parameters, device=first.storage.device)
        self.integers = [
            torch.stack(list(same)) for same in zip(*(module.integers for module in modules), strict=True)
        ]

    def parameters(self, rows: Tensor) -> list[Tensor]:
        """`rows`, [m, num_parameters] or wider, seen as m modules' parameters: [m, ...] each, in order."""
        views, start = [], 0
        for owner, name in self._parameters:
            shape = _shape(owner, name)
            stop = start + shape.numel()
            views.append(view_as(rows[:, start:stop], shape))
            start = stop
        return views

    def buffers_of(self, rows: slice | Tensor) -> list[Tensor]:
        """The buffers of the modules `rows`, [m, ...] each, in order."""
        if not self._buffers:
            return []
        return self.buffers(self.storage[rows], [whole[rows] for whole in self.integers])

    def buffers(self, rows: Tensor, integers: Sequence[Tensor]) -> list[Tensor]:
        """`rows`, [m, num_elements], seen as m modules' buffers; integer ones are given."""
        views, start, left = [], self.gradients.shape[1], iter(integers)
        for owner, name in self._buffers:
            shape = _shape(owner, name)
            stop = start + shape.numel()
            buffer = owner._buffers[name]
            floating = buffer is not None and buffer.is_floating_point()
            views.append(view_as(rows[:, start:stop], shape) if floating else next(left))
            start = stop
        return views

    def keep_buffers(self, where: slice | Tensor, buffers: Sequence[Tensor]) -> None:
        """Takes over the buffers of the rows `where`, as `buffers` gave them."""
        start, left = self.gradients.shape[1], iter(self.integers)
        for buffer in buffers:
            stop = start + buffer[0].numel()
            if buffer.is_floating_point():
                self.storage[where, start:stop] = buffer.reshape(len(buffer), -1)
            else:
                next(left)[where] = buffer
            start = stop

    @contextmanager
    def standing_in(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Iterator[None]:
        """Within, the first module computes with these instead of its own."""
        own: list[tuple[dict[str, Tensor | None], str, Tensor | None]] = []
        try:
            # Straight into the dictionaries: `setattr` refuses a tensor that is no Parameter.
            for (owner, name), tensor in zip(self._parameters, parameters, strict=True):
                own.append((owner._parameters, name, owner._parameters[name]))  # type: ignore[arg-type]
                owner._parameters[name] = tensor  # type: ignore[assignment]
            for (owner, name), tensor in zip(self._buffers, buffers, strict=True):
                own.append((owner._buffers, name, owner._buffers[name]))
                owner._buffers[name] = tensor
            for layer in self._norms:
                # An attribute of the layer hides its class' method until it is removed.
                layer.__dict__["forward"] = partial(_normalised, layer)
            yield
        finally:
            for layer in self._norms:
                layer.__dict__.pop("forward", None)
            for held, name, original in own:
                held[name] = original

    def all_equal(self) -> bool:
        """Whether all rows are equal, to the bit."""
        return bool((self.storage[1:] == self.storage[:1]).all())

    def hand_back(self) -> None:
        """Copies every row into its module."""
        for place, module in enumerate(self._modules):
            module.storage.copy_(self.storage[place])
            for own, stacked in zip(module.integers, self.integers, strict=True):
                own.copy_(stacked[place])


def _places(module: nn.Module) -> tuple[list[tuple[nn.Module, str]], list[tuple[nn.Module, str]]]:
    """Who owns the module's parameters and buffers, and under which name, in a flat module's order."""
    parameters, buffers = [], []
    for owner in module.modules():
        # None: a layer without bias. No parameter is shared (rayfed_kd/models/batchable.py).
        parameters += [(owner, name) for name, own in owner._parameters.items() if own is not None]
        buffers += [(owner, name) for name, buffer in owner._buffers.items() if buffer is not None]
    return parameters, buffers


def _normalised(layer: nn.GroupNorm, images: Tensor) -> Tensor:
    """What a GroupNorm layer computes, of plain operations: torch's own fails on channels-last in vmap."""
    # In float32, as torch's own is under autocast: a mean of many bfloat16 numbers would lose digits.
    grouped = images.float().reshape(len(images), layer.num_groups, -1)
    # correction=0: GroupNorm divides by the number of elements, not by one less.
    variance, mean = torch.var_mean(grouped, dim=2, correction=0, keepdim=True)
    scaled = ((grouped - mean) * (variance + layer.eps).rsqrt()).view(images.shape)
    shape = (1, -1, *([1] * (images.dim() - 2)))
    return scaled * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else scaled


def _shape(owner: nn.Module, name: str) -> torch.Size:
    tensor = owner._parameters.get(name)
    return (owner._buffers[name] if tensor is None else tensor).shape  # type: ignore[union-attr]
