"""Training of a student on generated samples, and of a generator that is told labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context
from rayfed_kd.recipe.schema import OptimizerRecipe
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.losses import cross_entropy, diversity_loss, target_divergence
from rayfed_kd.toolbox.optimizers import Optimizer


@dataclass(frozen=True)
class GeneratorTraining:
    """How a server trains a generator: `epochs` times `batches` steps, and the diversity loss's weight."""

    epochs: int
    batches: int
    batch_size: int
    optimizer: OptimizerRecipe
    diversity: float


@dataclass(frozen=True)
class Distillation:
    """How a server distils into a student."""

    epochs: int
    batch_size: int
    optimizer: OptimizerRecipe
    temperature: float = 1.0


class FeatureGenerator(GeneratorOptions):
    """A conditional generator of feature maps, and how the server trains it; FedCG's by default."""

    name: str = Field("fedcg_feature", description="a registered conditional generator of feature maps")
    weight_decay: float = Field(1e-5, ge=0, description="Adam's weight decay")
    epochs: int = Field(10, ge=0, description="server epochs a round; 0 leaves it untrained")
    batches: int = Field(200, ge=1, description="batches an epoch")
    batch_size: int = Field(64, ge=2, description="generated samples a batch")
    diversity: float = Field(1.0, ge=0, description="weight of the diversity loss (eq. 4)")

    @property
    def training(self) -> GeneratorTraining:
        """What `train_generator_on_labels` takes."""
        return GeneratorTraining(self.epochs, self.batches, self.batch_size, self.optimizer, self.diversity)


def train_generator_on_labels(
    generator: FlatModule, ensemble: Callable[[Tensor], Tensor], options: GeneratorTraining, ctx: Context
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
        options: epochs, batch size, rates, temperature.
        ctx: logs `distillation`.
    """
    optimizer = Optimizer(options.optimizer, student)
    for _ in range(options.epochs):
        order = torch.randperm(len(samples), generator=ctx.stream("distillation order"), device=ctx.device)
        for chosen in torch.split(order, options.batch_size):
            loss = target_divergence(targets[chosen], predict(samples[chosen]), options.temperature)
            ctx.log(distillation=loss)
            optimizer.minimise(loss)
