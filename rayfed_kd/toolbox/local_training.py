"""Local training: steps on a client's own samples, in a form that batches over clients or in a free form.

The form for a group of clients. A loss is a function of the package's or a bound method of the method,

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss

and all that may differ from client to client reaches it through its three arguments. `local.vectorise` can
then run the same step of many clients as one batched program (cluster/engine/batching/).

The free form. `train_local_epochs` takes any `loss(images, labels)`, a closure as well. What a closure
captured cannot be compared between clients, so each client trains alone, in a group, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext, Context, Drawn
from rayfed_kd.toolbox.losses import NOTHING, cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer, minimise

Models = Mapping[str, FlatModule]
Tensors = Mapping[str, Tensor]

OwnBatch = tuple[Drawn | None, Tensors]
"""A batch: samples of the client's own that are still to be read, or None, and further tensors by name."""


class Loss(NamedTuple):
    """What a loss gives of a batch.

    Attributes:
        value: scalar, to be minimised.
        logged: name -> scalar; the tables show the means over the round.
        handed_on: tensors that the step's later phases find in their batch; they may carry gradient.
    """

    value: Tensor
    logged: Tensors = NOTHING
    handed_on: Tensors = NOTHING


BatchLoss = Callable[[Models, Tensors, Tensors], Loss]


@dataclass(frozen=True)
class Phase:
    """One part of a step on a batch: a loss, and the optimisers that minimise it; none: it is only computed.

    A loss that trains in a group of clients must be a function without captured variables, or a bound method
    of a frozen object. It changes nothing but running statistics of models in train mode, draws no random
    numbers, and takes no Python decision by a tensor's value.
    """

    loss: BatchLoss
    optimizers: Sequence[Optimizer]


@dataclass(frozen=True)
class LocalSteps:
    """A client's local training in the form that batches over clients, still to be made.

    Attributes:
        models: trained and frozen ones, by name.
        phases: what is done on every batch, one after the other.
        batches: drawn one by one, from this client's own random streams.
        extras: further tensors of this client that the losses read, the same for all its batches.
        ctx: the step's.
    """

    models: Models
    phases: Sequence[Phase]
    batches: Iterable[OwnBatch]
    extras: Tensors
    ctx: Context

    def run(self) -> None:
        """Train this client alone."""
        for drawn, further in self.batches:
            # A copy, because later phases find what earlier ones hand on in it.
            batch = dict(further)
            if drawn is not None:
                batch["images"], batch["labels"] = self.ctx.read(drawn)
            for phase in self.phases:
                loss = phase.loss(self.models, batch, self.extras)
                self.ctx.log(**loss.logged)
                if phase.optimizers:
                    minimise(loss.value, *phase.optimizers)
                batch.update(loss.handed_on)


def train_local_epochs(
    student: FlatModule,
    loss: Callable[[Tensor, Tensor], Tensor],
    ctx: ClientContext,
    epochs: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
    clip: float | None = None,
) -> None:
    """Steps on any `loss(images, labels)` over the client's batches; this client trains alone.

    Args:
        student: what is trained.
        loss: images [batch, ...] normalised and labels [batch] int64 -> scalar; called once a step. It may be
            a closure, and log by `ctx.log`.
        ctx: the client's.
        epochs: numbers of the passes; None: those of local training, as the recipe says.
        optimizer: on the student's parameters, or on a part of them; None: the recipe's, afresh.
        clip: largest Euclidean norm of a step's gradient; None: any.
    """
    stepping = Optimizer(ctx.local.optimizer, student) if optimizer is None else optimizer
    for drawn in _drawn(ctx, epochs):
        stepping.minimise(loss(*ctx.read(drawn)), clip=clip)


def train_batches(
    models: Models,
    loss: BatchLoss,
    ctx: ClientContext,
    *,
    extras: Tensors = NOTHING,
    epochs: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
    further: Callable[[Drawn], Tensors] | None = None,
) -> None:
    """Steps of `models["student"]` on a loss over the client's batches; batches over clients.

    Args:
        models: "student", and those that the loss uses beside it, frozen.
        loss: (models, batch, extras) -> Loss, as `Phase` says. The batch has "images" [batch, ...],
            normalised, "labels" [batch] int64, and what `further` adds.
        ctx: the client's.
        extras: name -> further tensor of this client that the loss reads, the same for all its batches; a
            number is a tensor without dimensions.
        epochs: numbers of the passes; None: those of local training, as the recipe says.
        optimizer: on the student, or on a part of it; None: the recipe's, afresh.
        further: what a batch has beside images and labels, drawn from the client's own streams.
    """
    stepping = Optimizer(ctx.local.optimizer, models["student"]) if optimizer is None else optimizer
    batches = own_batches(ctx, epochs, further)
    train_phases(models, [Phase(loss, [stepping])], batches, ctx, extras=extras)


def own_batches(
    ctx: ClientContext, epochs: Iterable[int] | None = None, further: Callable[[Drawn], Tensors] | None = None
) -> Iterator[OwnBatch]:
    """Passes over a client's samples, each in an order of its own, as `train_phases` takes them.

    Args:
        epochs: numbers of the passes; None: those of local training, as the recipe says.
        further: what a batch has beside images and labels.
    """
    for drawn in _drawn(ctx, epochs):
        yield drawn, NOTHING if further is None else further(drawn)


def _drawn(ctx: ClientContext, epochs: Iterable[int] | None) -> Iterator[Drawn]:
    """The batches of these passes, or those of local training."""
    return ctx.local_batches() if epochs is None else chain.from_iterable(map(ctx.batches, epochs))


def train_phases(
    models: Models,
    phases: Sequence[Phase],
    batches: Iterable[OwnBatch],
    ctx: Context,
    *,
    extras: Tensors = NOTHING,
) -> None:
    """Steps of several phases on batches of any kind; batches over clients.

    Args:
        models: all that the losses use, by name; those in train mode are the client's own.
        phases: done on every batch, one after the other.
        batches: drawn one by one. The samples of a `Drawn` are read as "images" and "labels" when their
            turn comes.
        ctx: the step's.
        extras: as in `train_batches`.
    """
    steps = LocalSteps(models, phases, batches, {**extras, **label_options(ctx)}, ctx)
    # In a group of clients its runner takes them; a server's steps are run as they are.
    (ctx.group_runner or LocalSteps.run)(steps)


def label_options(ctx: Context) -> Tensors:
    """What the recipe says of the loss on a client's labels, as `cross_entropy` takes it; else nothing.

    Returns: `class_weights` [classes], of which `balanced` gives a class that the client lacks 0, and
        `label_smoothing`, a scalar.
    """
    local = ctx.local
    if not isinstance(ctx, ClientContext) or (local.class_weights is None and not local.label_smoothing):
        return NOTHING
    if local.class_weights == "balanced":
        counts = ctx.label_counts().to(ctx.device)
        weights = torch.where(counts > 0, ctx.num_samples / (ctx.classes * counts), 0.0)
    elif local.class_weights is None:
        weights = torch.ones(ctx.classes, device=ctx.device)
    else:
        weights = torch.tensor(local.class_weights, device=ctx.device)
    smoothing = torch.tensor(local.label_smoothing, device=ctx.device)
    return {"class_weights": weights, "label_smoothing": smoothing}


def label_loss(models: Models, batch: Tensors, extras: Tensors) -> Loss:
    """Cross entropy of `models["student"]`, logged as `ce`."""
    hard = cross_entropy(models["student"](batch["images"]), batch["labels"], extras)
    return Loss(hard, {"ce": hard})


def train_on_labels(
    student: FlatModule,
    ctx: ClientContext,
    epochs: Iterable[int] | None = None,
    optimizer: Optimizer | None = None,
) -> None:
    """Steps on cross entropy, logged as `ce`: what a client does where nothing is distilled.

    Args:
        student: what is trained.
        ctx: the client's.
        epochs: numbers of the passes; None: those of local training, as the recipe says.
        optimizer: on the student's parameters, or on a part of them; None: the recipe's, afresh.
    """
    train_batches({"student": student}, label_loss, ctx, epochs=epochs, optimizer=optimizer)


def equal_steps(sizes: Sequence[int], batch_size: int) -> int:
    """The same number of steps an epoch for every client, as in FedKF's code: floor(sum n_k / (K B))."""
    return sum(sizes) // (len(sizes) * batch_size)


def mean_loss(model: FlatModule, ctx: ClientContext) -> float:
    """Mean cross entropy of a frozen model over all of a client's samples, as its first epoch shows them."""
    total = torch.zeros((), dtype=torch.float64, device=ctx.device)
    with torch.no_grad():
        for images, labels in ctx.epoch(0, every=True):
            # Weighed by length, because the last batch may be smaller.
            total += len(labels) * cross_entropy(model(images), labels).to(torch.float64)
    return float(total) / max(ctx.num_samples, 1)


def public_logits(model: FlatModule, ctx: Context, ids: Tensor | None = None) -> Tensor:
    """A frozen model's logits on all public samples by id, or on `ids`: [n, classes], without gradient."""
    with torch.no_grad():
        return torch.cat([model(images) for _, images in ctx.public.in_order(ids)])
