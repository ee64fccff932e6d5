"""The loops that methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfed_kd.config import OptimizerRecipe
from rayfed_kd.contexts import ClientContext, Context
from rayfed_kd.generation import generate, noise, uniform_labels
from rayfed_kd.losses import cross_entropy, diversity_loss, target_divergence
from rayfed_kd.optimizers import Optimizer
from rayfed_kd.vectors import FlatModule


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


@dataclass(frozen=True)
class LocalEpochs:
    """Steps on `loss(images, labels)` over a client's batches, still to be made.

    Attributes:
        student: what is trained.
        loss: a batch's loss; called once a step.
        ctx: the client's.
        epochs: numbers of the passes.
        optimizer: on the student's parameters, or on a part of them.
    """

    student: FlatModule
    loss: Callable[[Tensor, Tensor], Tensor]
    ctx: ClientContext
    epochs: Sequence[int]
    optimizer: Optimizer

    def run(self) -> None:
        """Makes them, one batch after another."""
        for epoch in self.epochs:
            for images, labels in self.ctx.epoch(epoch):
                self.optimizer.minimise(self.loss(images, labels))


def train_local_epochs(
    student: FlatModule,
    loss: Callable[[Tensor, Tensor], Tensor],
    ctx: ClientContext,
    epochs: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
) -> None:
    """Steps on `loss(images, labels)` over the client's batches.

    Where clients train together (rayfed_kd/lanes.py), all of a group's steps are made at once.

    Args:
        epochs: numbers of the passes; None: 0 to E - 1.
        optimizer: None: the recipe's, afresh, on all of the student's parameters.
    """
    stepping = Optimizer(ctx.local.optimizer, student) if optimizer is None else optimizer
    passes = range(ctx.local.epochs) if epochs is None else tuple(epochs)
    asked = LocalEpochs(student, loss, ctx, passes, stepping)
    if ctx.together is None:
        asked.run()
    else:
        ctx.together(asked)


def train_on_labels(
    student: FlatModule,
    ctx: ClientContext,
    epochs: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
) -> None:
    """The same on cross entropy, logged as `ce`: what a client does where nothing is distilled."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        hard = cross_entropy(student(images), labels)
        ctx.log(ce=hard)
        return hard

    train_local_epochs(student, loss, ctx, epochs, optimizer)


def mean_loss(model: FlatModule, ctx: ClientContext) -> float:
    """Mean cross entropy of a frozen model over all of a client's samples, as its first epoch shows them."""
    total = torch.zeros((), dtype=torch.float64, device=ctx.device)
    with torch.no_grad():
        for images, labels in ctx.epoch(0):
            total += len(labels) * cross_entropy(model(images), labels).to(torch.float64)
    return float(total) / max(ctx.num_samples, 1)


def public_logits(model: FlatModule, ctx: Context, ids: Tensor | None = None) -> Tensor:
    """A frozen model's logits on all public samples by id, or on `ids`: [n, classes], without gradient."""
    with torch.no_grad():
        return torch.cat([model(images) for _, images in ctx.public.in_order(ids)])


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
