"""FedCOG: each client generates what it lacks, from the consensus model, and distils from it.

Ye, Du, Ni, Chen, Wang 2024, arXiv 2312.05966.

    labels    class c for share_c = (max_j N_j - N_c) / sum_i (max_j N_j - N_i) of `images`, rounded down
    images    x~ are free parameters that minimise, by Adam (0.5, 0.9), with both models frozen
              CE(f(w^t; x~), y) - lambda_dis D(f(w^t; x~), f(w_k; x~)),   w_k the client's last local model
    client    from w^t: CE on real batches + lambda_kd T^2 KL(softmax(f(w^t; x~) / T), softmax(f(w; x~) / T))
    server    FedAvg's
    down      the model w^t                                4 P bytes a client
    up        the trained model w_k and the count n_k      4 P bytes a client

A client keeps its last local model. Readings: D = KL(softmax(f(w^t)), softmax(f(w_k))), through both to x~; a
client without a past has D = 0, one with equal counts generates nothing; images start from Gaussian noise, as
the model sees images, and are used as they end, with w^t's predictions on them; a step takes a real and a
generated batch. BatchNorm's running statistics are of real images alone (released: of both). Generation
starts in the first round (released: after 50 of 70). lambda_kd = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, FlatModule, Message, OptimizerRecipe, Reply
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.local_training import (
    Loss,
    Models,
    OwnBatch,
    Phase,
    Tensors,
    train_on_labels,
    train_phases,
)
from rayfed_kd.toolbox.losses import cross_entropy, distillation, jensen_shannon_divergence, kl_divergence
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer

BETAS = (0.5, 0.9)


class Options(AveragingOptions):
    """FedCOG's options; lambda_kd is KDIA's, the others are the released code's."""

    lambda_kd: float = Field(0.01, ge=0, description="weight of the distillation on generated images")
    lambda_dis: float = Field(0.1, ge=0, description="weight of the disagreement that images seek")
    disagreement: Literal["kl", "js"] = Field(
        "kl", description="D: KL(global, local), or the Jensen-Shannon divergence"
    )
    temperature: float = Field(1.0, gt=0, description="T of the distillation")
    images: int = Field(256, ge=1, description="images a client generates a round, at most")
    steps: int = Field(500, ge=0, description="Adam steps on the images")
    lr: float = Field(0.01, gt=0, description="Adam's learning rate on the images")
    generation_from_round: int = Field(1, ge=1, description="first round whose clients generate")
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)


class FedCOG(Averaging[Tensor | None]):
    """Consensus-oriented generation. A client's state is its last local model, [P]; None before the first."""

    options: Options
    summary = "clients generate images of the classes they lack from the consensus model, and distil on them"
    paper = "Ye et al. 2024, arXiv 2312.05966"
    group_training = "local training; each client generates its images by itself"
    label_options = True
    client_keeps = "its last local model"
    generates = "images"

    def client_update(
        self, client: Tensor | None, message: Message, ctx: ClientContext
    ) -> tuple[Tensor | None, Reply]:
        """Generate x~ of missing classes and learn what w^t predicts on them; otherwise CE alone."""
        options, student = self.options, ctx.model(message["student"])
        labels = missing_labels(ctx.label_counts(), options.images)
        if options.lambda_kd and len(labels) and ctx.round >= options.generation_from_round:
            consensus = ctx.frozen_model(message["student"])
            local_model = None if client is None else ctx.frozen_model(client)
            images = self._images(labels, consensus, local_model, ctx)
            with torch.no_grad():
                taught = consensus(images)

            def batches() -> Iterator[OwnBatch]:
                generated = endless_batches(len(images), ctx)
                for drawn, chosen in zip(ctx.local_batches(), generated, strict=False):
                    yield drawn, {"generated": images[chosen], "taught": taught[chosen]}

            phase = Phase(self.loss, [Optimizer(ctx.local.optimizer, student)])
            train_phases({"student": student}, [phase], batches(), ctx)
        else:
            train_on_labels(student, ctx)
        trained = student.vector()
        return trained, Reply(student=trained, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE on a real batch, distillation on a generated one."""
        student = models["student"]
        hard = cross_entropy(student(batch["images"]), batch["labels"], extras)
        # One image has no variance of its own: BatchNorm takes the running one.
        with normalising(student, self.options.batchnorm if len(batch["generated"]) > 1 else "eval"):
            logits = student(batch["generated"])
        soft = distillation(batch["taught"], logits, self.options.temperature)
        return Loss(hard + self.options.lambda_kd * soft, {"ce": hard, "kd": soft})

    def _images(
        self, labels: Tensor, consensus: FlatModule, local_model: FlatModule | None, ctx: ClientContext
    ) -> Tensor:
        """x~, [n, c, h, w] as the model sees images, one for each label."""
        options = self.options
        shape, stream = (len(labels), *ctx.shape), ctx.stream("images")
        images = FreeTensor(torch.randn(shape, generator=stream, device=ctx.device))
        recipe = OptimizerRecipe(name="adam", lr=options.lr)
        optimizer = Optimizer(recipe, images, betas=BETAS)
        for _ in range(options.steps):
            logits = consensus(images.value)
            task = cross_entropy(logits, labels)
            ctx.log(task=task)
            loss = task
            if local_model is not None and options.lambda_dis:
                apart = self._disagreement(logits, local_model(images.value))
                ctx.log(disagreement=apart)
                loss = loss - options.lambda_dis * apart
            optimizer.minimise(loss)
        return images.trainable  # the same memory, without gradient

    def _disagreement(self, consensus_logits: Tensor, own_logits: Tensor) -> Tensor:
        """D, scalar; gradient reaches both."""
        divergence = jensen_shannon_divergence if self.options.disagreement == "js" else kl_divergence
        return divergence(consensus_logits, own_logits)


def missing_labels(counts: Tensor, images: int) -> Tensor:
    """Labels for at most `images` images, ascending int64: class c for its share of what [C] counts lack."""
    counts = counts.to(torch.int64)
    lacking = counts.max() - counts
    numbers = images * lacking // lacking.sum().clamp(min=1)
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), numbers)


def endless_batches(number: int, ctx: ClientContext) -> Iterator[Tensor]:
    """Indices of `number` images in the recipe's batch size, pass after pass in orders of their own."""
    while True:
        order = torch.randperm(number, generator=ctx.stream("image order"), device=ctx.device)
        yield from ctx.in_batches(order)
