"""FedDF: the server fuses its clients' models by distilling their ensemble into the average.

Lin, Kong, Stich, Jaggi 2020, "Ensemble Distillation for Robust Model Fusion in Federated Learning",
arXiv 2006.07242, Algorithm 1. "FedDFusion" in DaFKD's tables.

    start     w = sum over the cohort of p_k w_k
    J times   w <- w - eta_s grad T^2 KL(softmax(mean_k f(w_k; x) / T), softmax(f(w; x) / T))
              on batches x of unlabelled samples, the recipe's public set, which the server alone uses
    client    FedAvg's, from w

    down  the model w                              4 P bytes a client
    up    the trained model w_k, the count n_k     4 P bytes a client

As released, Adam's rate falls along a cosine to 0 over the J steps and gradients are clipped at norm 5; the
optimiser is new each round. Readings: the start is weighed by samples (the released code: uniformly);
logits are averaged (the released default, the mean of the losses, has the gradient of averaged
probabilities); everyone teaches as much, late replies as well; T^2 multiplies the loss; no validation. With
`validation` distillation stops as released, on public samples with labels: the best of the models looked
at is taken, the last step's always among them. BatchNorm's running statistics follow the public images, which
are real ones, as in any training. J = 0 is FedAvg.
"""

from __future__ import annotations

import math
from itertools import count, islice
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.protocol import (
    FlatModule,
    MethodOptions,
    OptimizerName,
    OptimizerRecipe,
    RecipeError,
    Replies,
    ServerContext,
)
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions, GlobalModel, new_model
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.losses import target_divergence
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.public_data import values_by_id


class DistillationOptimizer(OptimizerRecipe):
    """The server's optimiser; what is not given is as released."""

    name: OptimizerName = "adam"
    lr: float = Field(0.001, gt=0, description="learning rate of the first step")


class Validation(MethodOptions):
    """Early stopping by accuracy on public samples with labels, which are not distilled on."""

    one_in: int = Field(10, ge=2, description="every so many-th public sample, by id, is held out")
    every: int = Field(100, ge=1, description="steps between two looks")
    patience: int = Field(1000, ge=1, description="steps without a new best after which it stops")


class Options(AveragingOptions):
    """FedDF's options; `weighting` and `aggregation` are those of the start."""

    start: Literal["average", "last"] = Field(
        "average", description="where w starts: the cohort's average, or the last round's w"
    )
    ensemble: Literal["logits", "probabilities"] = Field("logits", description="what is averaged")
    temperature: float = Field(1.0, gt=0, description="T; the loss is times T^2")
    epochs: int = Field(5, ge=0, description="passes over the public samples")
    steps: int | None = Field(None, ge=0, description="J, in place of epochs. Released: 10,000 at most")
    batch_size: int = Field(128, ge=1, description="public samples a step")
    optimizer: DistillationOptimizer = DistillationOptimizer()
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate")
    clip: float | None = Field(5.0, gt=0, description="largest norm of a gradient; null: any")
    validation: Validation | None = Field(None, description="early stopping; null: all steps")
    batchnorm: BatchNormMode = Field("update", description=BATCHNORM)

    @model_validator(mode="after")
    def _learning(self) -> Options:
        if self.start == "last" and not (self.epochs if self.steps is None else self.steps):
            raise ValueError("start: last without steps never learns; expected epochs or steps above 0")
        if self.start == "last" and self.model_fields_set & {*AveragingOptions.model_fields}:
            raise ValueError("start: last averages no models; expected neither weighting nor aggregation")
        return self

    def factor(self, step: int, steps: int) -> float:
        """Of the learning rate in step 0 to steps - 1."""
        return 1.0 if self.schedule == "constant" else (1 + math.cos(math.pi * step / steps)) / 2


class FedDF(Averaging[None], plain_training=True):
    """Ensemble distillation for model fusion."""

    options: Options
    summary = "the server distils the ensemble of its clients' models into their average"
    paper = "Lin et al. 2020, arXiv 2006.07242"
    up = {"student": "weights"}

    @property
    def public(self) -> Literal["samples", "labels"]:
        """Labels only if `validation` measures accuracy on held-out public samples."""
        return "samples" if self.options.validation is None else "labels"

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if `validation` leaves no sample to distil on."""
        if not len(self._split(ctx)[0]):
            raise RecipeError("method.validation.one_in: no public sample is left to distil on")

    def absorb(self, server: GlobalModel, replies: Replies, ctx: ServerContext) -> GlobalModel:
        """Start from the cohort's average (or the last w), then take J steps towards the ensemble."""
        weights = server.weights
        if self.options.start == "average":
            weights = new_model(replies, self.options, weights)
        return GlobalModel(self._distilled(weights, replies, ctx), server.version + 1)

    def mixed(self, logits: Tensor) -> Tensor:
        """What the ensemble says at temperature T, [batch, C], from its members' logits [K, batch, C]."""
        softened = logits / self.options.temperature
        if self.options.ensemble == "logits":
            return softened.mean(0).softmax(1)
        return softened.softmax(2).mean(0)

    def _distilled(self, start: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """w, [P], after J steps from `start`."""
        options = self.options
        ids, held_out = self._split(ctx)
        passes = options.epochs * len(ctx.local.batch_sizes(len(ids), options.batch_size))
        steps = passes if options.steps is None else options.steps
        if not steps:
            return start
        teachers = Ensemble(ctx.frozen_model(start), list(replies.vectors("student")), batched=False)
        with torch.no_grad():
            # Teachers are frozen and these images not augmented: one pass gives the targets of all J steps.
            outputs = [self.mixed(teachers(images)) for _, images in ctx.public.in_order(ids)]
        student = ctx.model(start)
        optimizer, best = Optimizer(options.optimizer, student), Best(options.validation, held_out)
        # Passes without end, of which J steps are taken.
        targets = values_by_id(ids, torch.cat(outputs), ctx)
        batches = (batch for epoch in count() for batch in ctx.public.epoch(epoch, options.batch_size, ids))
        for step, (chosen, images) in enumerate(islice(batches, steps)):
            with normalising(student, options.batchnorm):
                logits = student(images)
            loss = target_divergence(targets[chosen], logits, options.temperature)
            ctx.log(distillation=loss)
            optimizer.minimise(loss, factor=options.factor(step, steps), clip=options.clip)
            if best.enough(step + 1, steps, student, ctx):
                break
        return student.vector().cpu() if best.model is None else best.model.cpu()

    def _split(self, ctx: ServerContext) -> tuple[Tensor, Tensor]:
        """Public samples to distil on, and those held out for validation."""
        ids, validation = ctx.public.ids, self.options.validation
        if validation is None:
            return ids, ids[:0]
        # By id, not drawn: every round holds out the same samples.
        mask = ids % validation.one_in == 0
        return ids[~mask], ids[mask]


class Best:
    """The model that was best on held-out public samples; None without validation."""

    def __init__(self, validation: Validation | None, held_out: Tensor) -> None:
        self._validation, self._held_out = validation, held_out
        self.model: Tensor | None = None
        # -1, so that the first look is a new best even if nothing is right.
        self._right, self._step = -1, 0

    def enough(self, step: int, steps: int, student: FlatModule, ctx: ServerContext) -> bool:
        """Looks, if it is time, after `step` of `steps`; whether there was no new best for too long."""
        validation = self._validation
        if validation is None or (step % validation.every and step < steps):
            return False
        right = 0
        for ids, images in ctx.public.in_order(self._held_out):
            right += int((student.predict(images).argmax(dim=1) == ctx.public.labels(ids)).sum())
        if right > self._right:
            self.model, self._right, self._step = student.vector(), right, step
        return step - self._step >= validation.patience
