"""Clients' models as teachers, of any architectures, and how far images are from what BatchNorm knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_kd.models.flat_module import FlatModule


class Teachers:
    """Frozen models, one after another: on a CPU grouped convolutions are slower than plain ones.

    Args:
        models: at least one, each a module of its own.
    """

    def __init__(self, models: Sequence[FlatModule]) -> None:
        self._models = list(models)

    def __len__(self) -> int:
        return len(self._models)

    def __call__(self, images: Tensor) -> Tensor:
        """Logits, [K, batch, C]; gradient reaches the images."""
        return torch.stack([model(images) for model in self._models])

    def with_gap(self, images: Tensor, over: Literal["mean", "sum"] = "mean") -> tuple[Tensor, Tensor]:
        """Logits, and how far the batch is from the teachers' real images.

        Yin et al. 2020 (DeepInversion), arXiv 1912.08795, eq. 4, as DENSE has it: over all BatchNorm layers
        of a teacher, the sum of ||running variance - variance||_2 + ||running mean - mean||_2, of what the
        layer is given; the variance is the biased one.

        Args:
            images: [batch, c, h, w], as models see them.
            over: the teachers' mean or sum is taken; one without BatchNorm layers counts as 0.
        Returns: [K, batch, C]; scalar, 0 without BatchNorm layers. Gradient reaches the images.
        """
        gaps: list[Tensor] = []

        def compare(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            hidden = inputs[0].transpose(0, 1).flatten(1)  # [channels, all places of all images]
            variance, mean = torch.var_mean(hidden, dim=1, correction=0)
            gaps.append((layer.running_var - variance).norm() + (layer.running_mean - mean).norm())

        layers = [part for model in self._models for part in model.submodules if isinstance(part, _BatchNorm)]
        hooks = [layer.register_forward_pre_hook(compare) for layer in layers if layer.track_running_stats]
        try:
            logits = self(images)
        finally:
            # The modules are lent: a hook that stays would see the next step's images, too.
            for hook in hooks:
                hook.remove()
        total = torch.stack(gaps).sum() if gaps else logits.new_zeros(())
        return logits, total / len(self) if over == "mean" else total
