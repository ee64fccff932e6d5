"""Local training: epochs over a client's own samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext, Context
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer


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

    Where clients train together (rayfed_kd/batching/lanes.py), all of a group's steps are made at once.

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
