"""Training of a student on generated samples, and of a generator that is told labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.losses import cross_entropy, diversity_loss, target_divergence
from rayfed_kd.toolbox.optimizers import Optimizer

BatchNormMode = Literal["keep", "update", "eval"]
"""What BatchNorm layers of a model do that learns from samples which it will not be evaluated on:

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


@dataclass(frozen=True)
class Distillation:
    """How a server distils into a student.

    Attributes:
        epochs, batch_size, optimizer, temperature: of the steps.
        batchnorm: what the student's BatchNorm layers do.
        decay: factor of the rate after three epochs in a row without a smaller loss; 1: none.
    """

    epochs: int
    batch_size: int
    optimizer: OptimizerRecipe
    temperature: float = 1.0
    batchnorm: BatchNormMode = "keep"
    decay: float = 1.0


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


def distil(
    student: FlatModule,
    predict: Callable[[Tensor], Tensor],
    samples: Tensor,
    targets: Tensor,
    options: Distillation,
    ctx: Context,
) -> None:
    """Trains a student towards soft targets, in an order of its own each epoch.

    Args:
        student: in train mode.
        predict: the student's logits on samples.
        samples: [n, ...].
        targets: [n, classes], probabilities.
        options: epochs, batch size, rates, temperature, BatchNorm.
        ctx: logs `distillation`.
    """
    optimizer, pace = Optimizer(options.optimizer, student), Pace(options.decay)
    for _ in range(options.epochs):
        order = torch.randperm(len(samples), generator=ctx.stream("distillation order"), device=ctx.device)
        losses = []
        for chosen in ctx.in_batches(order, options.batch_size):
            with normalising(student, options.batchnorm):
                logits = predict(samples[chosen])
            loss = target_divergence(targets[chosen], logits, options.temperature)
            ctx.log(distillation=loss)
            optimizer.minimise(loss, factor=pace.factor)
            losses.append(loss.detach())
        # Reading a loss waits for the device, so it is read only where the rate depends on it.
        if options.decay < 1:
            pace.note(torch.stack(losses).mean().item())


@dataclass
class Pace:
    """torch's ReduceLROnPlateau with patience 2, as a factor of the rate: DaFKD's released code has it.

    Attributes:
        decay: what the factor is multiplied by in an epoch that is the third without a new best.
        factor: of the recipe's rate.
    """

    decay: float
    factor: float = 1.0
    _best: float = math.inf
    _waited: int = 0

    def note(self, loss: float) -> None:
        """Takes an epoch's mean loss; a new best is smaller by more than one in 10,000, as in torch."""
        if loss < self._best * (1 - 1e-4):
            self._best, self._waited = loss, 0
            return
        self._waited += 1
        if self._waited > 2:
            self.factor, self._waited = self.factor * self.decay, 0
