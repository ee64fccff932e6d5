"""A server with a larger model of its own that learns on labelled public samples from its clients' logits.

Cheng et al. 2021 (FedGEMS), arXiv 2110.11027, Algorithm 1, lines 4 to 15: the exchange of FedGEM and FedGEMS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from rayfed_kd.protocol import (
    Architecture,
    Control,
    MethodOptions,
    OptimizerName,
    OptimizerRecipe,
    ServerContext,
    weighted_mean,
)
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode
from rayfed_kd.toolbox.losses import blended_loss
from rayfed_kd.toolbox.optimizers import Moments, Optimizer, faded
from rayfed_kd.toolbox.public_data import TEACHER_CONTROLS, AugmentingOptions, TeacherOptions

# In nats. The entropy of a client that is certain rounds to 0: 1 / H would be infinite, its softmax NaN.
LEAST_ENTROPY = 1e-8


class ServerModel(BaseModel):
    """The server's model: a registered classifier and its options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field("bottleneck_resnet", description="a registered classifier or package.module:Object")

    def architecture(self, cut: str | None = None) -> Architecture:
        """What contexts make as "server"; without options ResNet-56, or what of it is behind its stem.

        `cut`: it takes not images but the output of this layer of the clients' models.
        """
        options = dict(self.model_extra or {})
        if self.name == "bottleneck_resnet":
            stem = {} if cut is None else {"stem": False}
            # Three stages of 6 blocks of 3 convolutions, a stem and a classifier: 56 layers.
            options = {"blocks": [6, 6, 6], **stem, **options}
        return Architecture("classifier", self.name, options, cut=cut)


class ServerOptimizer(OptimizerRecipe):
    """The server's optimiser; what is not given is Table 13's."""

    name: OptimizerName = Field("adam", description="the optimiser")
    lr: float = Field(0.001, gt=0, description="learning rate")
    weight_decay: float = Field(1e-4, ge=0, description="L2 weight decay")


class Plateau(MethodOptions):
    """Learning rates fall where the server's accuracy rises no more."""

    factor: float = Field(0.1, gt=0, lt=1, description="what all learning rates are multiplied by")
    patience: int = Field(10, ge=0, description="rounds without a new best that are waited through")


class GEMOptions(AugmentingOptions, TeacherOptions):
    """FedGEM's options; E of the recipe's `local` are a client's epochs on its own data."""

    selective: ClassVar[bool] = False  # whether labels also choose what is learned from whom
    server: ServerModel = ServerModel()
    epsilon: float = Field(0.75, ge=0, le=1, description="weight of the labels; 1 - epsilon of the teachers")
    temperature: float = Field(1.0, gt=0, description="T of every KL term, which is times T^2")
    server_epochs: int = Field(1, ge=1, description="passes over the public set at the server")
    server_batch_size: int = Field(256, ge=1, description="public samples a batch there")
    server_optimizer: ServerOptimizer = ServerOptimizer()
    public_epochs: int = Field(1, ge=0, description="a client's passes over the public set")
    start_epochs: int = Field(1, ge=0, description="a client's first epochs on its own data")
    plateau: Plateau | None = Field(None, description="a schedule of the learning rates; null: constant")
    batchnorm: BatchNormMode = Field("update", description="at clients on public images: " + BATCHNORM)

    @property
    def label_weight(self) -> float:
        """Epsilon; 1 without a teacher."""
        return 1.0 if self.teacher == "none" else self.epsilon

    @property
    def controls(self) -> Mapping[Control, Sequence[str]]:
        """Of a run that is none itself."""
        if self.teacher != "exchanged" or self.epsilon in (0, 1):
            return {}
        if self.selective:
            return TEACHER_CONTROLS
        return {**TEACHER_CONTROLS, "no labels": ["method.epsilon=0.0"]}


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        model: [P_s].
        moments: of its optimiser.
        started: clients that are trained for a first time, ascending.
        pool: [N0, C], logits of samples from when they were right.
        known: [N0] bool, which have such.
        rate: factor of all learning rates.
        best, waited: the best share of right samples, and rounds since it.
    """

    model: Tensor
    moments: Moments
    started: tuple[int, ...]
    pool: Tensor
    known: Tensor
    rate: float = 1.0
    best: float = 0.0
    waited: int = 0


@dataclass(frozen=True)
class ClientState:
    """A client's model, [P_k], and the moments of its optimiser."""

    model: Tensor
    moments: Moments


class Lesson(NamedTuple):
    """How a batch is learned: weights of labels and of teachers, [n] each; the teachers' logits, [n, C]."""

    hard: Tensor
    soft: Tensor
    teacher: Tensor


def blended(teacher: Tensor, epsilon: float) -> Lesson:
    """eps CE + (1 - eps) KL for every sample."""
    hard = torch.full_like(teacher[:, 0], epsilon)
    return Lesson(hard, torch.full_like(hard, 1 - epsilon), teacher)


def learn_public(
    server: ServerState,
    teach: Callable[[Tensor, Tensor, Tensor], Lesson],
    options: GEMOptions,
    ctx: ServerContext,
    branch: Literal["train", "eval"] = "train",
) -> tuple[ServerState, Tensor]:
    """The server's epochs on the public set (Algorithm 1, lines 4 to 15), and L_s, [N0, C], on the CPU.

    Args:
        server: before the round.
        teach: (ids, the server's logits, labels) of a batch -> how it is learned.
        options: the method's.
        ctx: logs `server`.
        branch: whose logits `teach` gets, and the plateau's accuracy is of: those of the training forward,
            or those that the model in eval mode has for the stored images before the step.
    """
    public = ctx.public
    model = ctx.model(server.model, "server")
    optimizer = Optimizer(faded(options.server_optimizer, server.rate), model, server.moments)
    knowledge = torch.zeros(len(public), ctx.classes, device=ctx.device)
    right, samples = 0.0, 0
    left_out = torch.ones(len(public), dtype=torch.bool, device=ctx.device)
    for epoch in range(options.server_epochs):
        for ids, images in public.epoch(epoch, options.server_batch_size):
            labels = public.labels(ids)
            # Before the training forward, which moves the running statistics.
            evaluated = model.predict(images) if branch == "eval" else None
            logits = model(options.training_images(ids, images, ctx))
            judged = logits.detach() if evaluated is None else evaluated
            lesson = teach(ids, judged, labels)
            shares = (lesson.hard, lesson.soft)
            loss = blended_loss(logits, labels, lesson.teacher, shares, options.temperature)
            ctx.log(server=loss)
            optimizer.minimise(loss)
            # L_s of a batch is from right after its own step (Algorithm 1), not from the round's last model.
            knowledge[ids], left_out[ids] = model.predict(images), False
            right += float((judged.argmax(dim=1) == labels).sum())
            samples += len(ids)
    if left_out.any():  # in every epoch, by `local.last_batch: drop`
        for ids, images in public.in_order(left_out.nonzero().flatten()):
            knowledge[ids] = model.predict(images)
    moments = {name: value.cpu() for name, value in optimizer.state().items()}
    learned = replace(server, model=model.vector().cpu(), moments=moments)
    accuracy = right / samples
    return paced(learned, accuracy, options.plateau), knowledge.cpu()


def paced(server: ServerState, accuracy: float, plateau: Plateau | None) -> ServerState:
    """Learning rates fall after more than `patience` rounds without a new best."""
    if accuracy > server.best:
        return replace(server, best=accuracy, waited=0)
    if plateau is None or server.waited < plateau.patience:
        return replace(server, waited=server.waited + 1)
    return replace(server, waited=0, rate=server.rate * plateau.factor)


def entropy_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """alpha: among the clients that are right about a sample, the softmax of 1 / H; 0 for the others (eq. 4).

    Args:
        logits: [K, n, C], the clients'.
        labels: [n].
    Returns: [K, n]; a column of zeros where no client is right.
    """
    log_p = logits.log_softmax(dim=2)
    entropy = -(log_p.exp() * log_p).sum(dim=2)
    sure = (1 / entropy.clamp(min=LEAST_ENTROPY)).masked_fill(logits.argmax(dim=2) != labels, -math.inf)
    # Where no client is right the column is all -inf, and its softmax is NaN.
    return sure.softmax(dim=0).nan_to_num(0.0)


def mean_logits(logits: Sequence[Tensor]) -> Tensor:
    """mean_j l_j, [n, C], of any sequence of clients' logits."""
    return weighted_mean(logits, [1.0] * len(logits))
