"""Several models of one architecture on the same inputs: as one batched program, or one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.models.whole_modules import classify, features_of

__all__ = ["Ensemble", "classify", "mixed_heads"]


class _Part(nn.Module):
    """A function of a module as a module's forward, so that `functional_call` can replace its tensors."""

    def __init__(self, inner: nn.Module, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self.inner, inputs)


class Ensemble:
    """K frozen models of one architecture. Gradient reaches the inputs only.

    Args:
        flat: a module of that architecture, in eval mode; its own values are not used.
        vectors: K vectors, [P] each, on any device.
        function: (module, inputs [batch, ...]) -> [batch, ...]; the module's logits if not given.
        batched: one program over stacked tensors, or a loop. Dense layers are faster batched; on a CPU
            a grouped convolution is slower than K plain ones.
    """

    def __init__(
        self,
        flat: FlatModule,
        vectors: Sequence[Tensor],
        function: Callable[[Any, Tensor], Tensor] | None = None,
        *,
        batched: bool,
    ) -> None:
        self._part = _Part(flat.module, function or nn.Module.__call__)
        # A copy, in memory that torch allocated: kernels are chosen by alignment, so the last bits could
        # differ on views of received memory.
        self._stacked = torch.stack([vector.to(flat.storage.device) for vector in vectors])
        # What is beside the vectors is alike in all, and stays as the module has it.
        self._models = [
            {f"inner.{name}": tensor for name, tensor in flat.tensors(row).items()} for row in self._stacked
        ]
        self._batched = batched
        names = self._models[0] if batched else ()
        self._together = {name: torch.stack([model[name] for model in self._models]) for name in names}

    def __len__(self) -> int:
        return len(self._models)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[batch, ...] -> [K, batch, ...]."""
        if not self._batched:
            return self.some(range(len(self)), inputs)
        outputs: Tensor = vmap(self._one, in_dims=(0, None))(self._together, inputs)
        return outputs

    def some(self, members: Sequence[int], inputs: Tensor) -> Tensor:
        """The models at these places alone, one after another: [batch, ...] -> [len(members), batch, ...]."""
        return torch.stack([functional_call(self._part, self._models[place], (inputs,)) for place in members])

    def each(self, inputs: Tensor) -> Tensor:
        """Every model on inputs of its own: [K, batch, ...] -> [K, batch, ...]."""
        if not self._batched:
            pairs = zip(self._models, inputs, strict=True)
            return torch.stack([functional_call(self._part, model, (batch,)) for model, batch in pairs])
        outputs: Tensor = vmap(self._one, in_dims=(0, 0))(self._together, inputs)
        return outputs

    def _one(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self._part, tensors, (inputs,))
        return output


def logits_beside(module: Any, features: Tensor) -> Tensor:
    """A member's logits and its features, [batch, classes + F], from its features, [batch, F]."""
    return torch.cat([classify(module, features), features], dim=1)


def logits_and_features(module: Any, images: Tensor) -> Tensor:
    """The same from images: the layers below the head, which cost most, are computed once."""
    return logits_beside(module, features_of(module, images))


def mixed_heads(
    frozen: FlatModule, vectors: Sequence[Tensor], stage: int, shares: Tensor
) -> Callable[[Tensor], Tensor]:
    """The weighted sum of several models' logits on feature maps, [batch, ...] -> [batch, classes].

    Args:
        frozen: a module of their architecture.
        vectors: K vectors, [P] each.
        stage: after which the maps enter.
        shares: [K], the weights.
    """
    heads = Ensemble(frozen, vectors, lambda model, maps: model.between(stage, None, maps), batched=True)
    return lambda maps: torch.einsum("k,kbc->bc", shares, heads(maps))
