"""BatchNorm of models that learn from generated samples, and a generator that is told labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.losses import cross_entropy, diversity_loss
from rayfed_kd.toolbox.optimizers import Optimizer

BatchNormMode = Literal["keep", "update", "eval"]
"""What BatchNorm, and all that has running statistics, does in a model that learns from samples which it will
not be evaluated on:

- `keep`: they normalise by the batch's own statistics and leave the running ones alone;
- `update`: likewise, and the running ones follow the batch, as any model in torch's train mode does;
- `eval`: they normalise by the running ones, which stay.
"""
BATCHNORM = "BatchNorm on them: batch statistics (keep, update: running ones stay, follow), or running (eval)"


def normalising(model: FlatModule, mode: BatchNormMode) -> AbstractContextManager[None]:
    """Within, BatchNorm layers of a model in train mode do what `mode` says."""
    if mode == "update":
        return nullcontext()
    return model.keeping_statistics() if mode == "keep" else model.using_running_statistics()


class FeatureGenerator(GeneratorOptions):
    """A conditional generator of feature maps, and how the server trains it; FedCG's by default."""

    name: str = Field("fedcg_feature", description="a registered conditional generator of feature maps")
    weight_decay: float = Field(1e-5, ge=0, description="Adam's weight decay")
    epochs: int = Field(10, ge=0, description="server epochs a round; 0 leaves it untrained")
    batches: int = Field(200, ge=1, description="batches an epoch")
    batch_size: int = Field(64, ge=2, description="generated samples a batch")
    diversity: float = Field(1.0, ge=0, description="weight of the diversity loss (eq. 4)")


def train_generator_on_labels(
    generator: FlatModule, ensemble: Callable[[Tensor], Tensor], options: FeatureGenerator, ctx: Context
) -> None:
    """Teaches a conditional generator to make what an ensemble takes for the label asked for (KDIA eq. 3, 4).

    CE(ensemble(G(z, y)), y) plus the diversity loss, with an Adam of its own. The labels are drawn
    once and reshuffled each epoch; noise is fresh in every batch.

    Args:
        generator: in train mode.
        ensemble: samples [batch, ...] -> logits [batch, classes]; gradient passes.
        options: epochs, batches, rates.
        ctx: logs `generator_ce` and `diversity`.
    """
    optimizer = Optimizer(options.optimizer, generator)
    pool = uniform_labels(options.batches * options.batch_size, ctx)
    for _ in range(options.epochs):
        order = torch.randperm(len(pool), generator=ctx.stream("label order"), device=ctx.device)
        for labels in torch.split(pool[order], options.batch_size):
            z = noise(len(labels), generator, ctx)
            samples = generate(generator, z, labels, ctx)
            fit, diversity = cross_entropy(ensemble(samples), labels), diversity_loss(z, samples)
            ctx.log(generator_ce=fit, diversity=diversity)
            optimizer.minimise(fit + options.diversity * diversity)
