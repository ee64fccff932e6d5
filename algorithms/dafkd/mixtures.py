"""Distillation of a mixture: what several models say of generated samples, mixed, and taught to one model.

Of DaFKD (Wang et al. 2023, eq. 7 and 8), whose members weigh by their discriminators.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rayfed_kd.protocol import Context, FlatModule, MethodOptions, OptimizerRecipe, Replies, ServerContext
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.ensembles import Ensemble, logits_and_features, logits_beside
from rayfed_kd.toolbox.generation import generate
from rayfed_kd.toolbox.losses import target_divergence
from rayfed_kd.toolbox.optimizers import Optimizer

CHUNK = 32  # samples; more leave the CPU's cache and take twice as long


class MixtureOptions(MethodOptions):
    """What is mixed, and how the mixture is taught."""

    target: Literal["probabilities", "logits"] = Field(
        "probabilities", description="what is mixed: probabilities (eq. 8), or logits as released"
    )
    temperature: float = Field(1.0, gt=0, description="T of the distillation; the loss is times T^2")
    distill_batches: int = Field(40, ge=1, description="batches of generated samples a round")
    distill_epochs: int = Field(1, ge=0, description="passes over them; 0: w is w^. Released: 40")
    distill_from_round: int = Field(1, ge=1, description="the first round that distils. Released: 2")
    distill_lr: float = Field(0.01, gt=0, description="Adam's learning rate in distillation")
    distill_decay: float = Field(
        1.0, gt=0, le=1, description="its factor once a loss stops falling over epochs. Released: 0.2"
    )
    generator_statistics: Literal["batch", "running"] = Field(
        "batch",
        description="BatchNorm of the averaged generator that draws samples: of the batch, or running",
    )
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)

    def prediction(self, logits: Tensor) -> Tensor:
        """What is mixed, of logits [..., classes]: probabilities, or logits, at temperature T."""
        softened = logits / self.temperature
        return softened if self.target == "logits" else softened.softmax(dim=-1)

    def softened(self, mixed: Tensor) -> Tensor:
        """Probabilities, [n, classes], of a mixture."""
        return mixed.softmax(dim=-1) if self.target == "logits" else mixed

    def drawing(self, generator: FlatModule) -> AbstractContextManager[None]:
        """Within, the averaged generator, in eval mode, normalises as `generator_statistics` says."""
        # Averaged running statistics do not fit averaged weights: what is drawn with them has less contrast.
        if self.generator_statistics == "running":
            return nullcontext()
        return generator.using_batch_statistics()

    def samples(self, generator: FlatModule, seed: int, ctx: Context) -> Tensor:
        """A round's distillation samples, [n, ...]: the same wherever they are computed."""
        # Drawn on the CPU, so that server and clients get the same noise and labels on any device.
        stream = torch.Generator().manual_seed(seed)
        count = self.distill_batches * ctx.local.batch_size
        z = torch.randn(count, generator.latent, generator=stream).to(ctx.device)
        labels = torch.randint(ctx.classes, (count,), generator=stream).to(ctx.device)
        # As many at a time as the clients' steps made, so that batch statistics are of as many.
        size = ctx.local.batch_size if self.generator_statistics == "batch" else CHUNK
        with torch.no_grad(), self.drawing(generator):
            drawn = [
                generate(generator, *part, ctx)
                for part in zip(torch.split(z, size), torch.split(labels, size), strict=True)
            ]
        return torch.cat(drawn)

    def teach(
        self,
        student: FlatModule,
        predict: Callable[[Tensor], Tensor],
        samples: Tensor,
        mixed: Tensor,
        ctx: ServerContext,
    ) -> None:
        """Trains the student towards a mixture (eq. 8), in an order of its own each epoch.

        Args:
            student: in train mode.
            predict: its logits on samples.
            samples: [n, ...].
            mixed: [n, classes], probabilities.
            ctx: logs `distillation`.
        """
        optimizer = Optimizer(OptimizerRecipe(name="adam", lr=self.distill_lr), student)
        factor, plateau = 1.0, falling_rate(self.distill_decay) if self.distill_decay < 1 else None
        for _ in range(self.distill_epochs):
            stream = ctx.stream("distillation order")
            order = torch.randperm(len(samples), generator=stream, device=ctx.device)
            losses = []
            for chosen in ctx.in_batches(order):
                with normalising(student, self.batchnorm):
                    logits = predict(samples[chosen])
                loss = target_divergence(mixed[chosen], logits, self.temperature)
                ctx.log(distillation=loss)
                optimizer.minimise(loss, factor=factor)
                losses.append(loss.detach())
            # Reading a loss waits for the device, so it is read only where the rate depends on it.
            if plateau is not None:
                plateau.step(torch.stack(losses).mean().item())
                factor = plateau.optimizer.param_groups[0]["lr"]


def falling_rate(decay: float) -> ReduceLROnPlateau:
    """A rate that starts at 1 and falls by the factor `decay`, with DaFKD's released patience of 2."""
    return ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1)], lr=1.0), factor=decay, patience=2)


def in_chunks(function: Any, inputs: Tensor, dim: int = 0) -> Tensor:
    """`function` over stretches of inputs, without gradient: memory stays that of a stretch."""
    with torch.no_grad():
        return torch.cat([function(part) for part in torch.split(inputs, CHUNK)], dim=dim)


def members_say(
    replies: Replies, frozen: FlatModule, samples: Tensor, classes: int, *, on_features: bool
) -> tuple[Tensor, Tensor]:
    """The logits, [K, n, classes], and the features, [K, n, F], of the replies' parts `student` on samples.

    Args:
        frozen: a module of their architecture.
        samples: [n, ...], images, or the trunk's features with `on_features`.
    """
    both = logits_beside if on_features else logits_and_features
    members = Ensemble(frozen, list(replies.vectors("student")), both, batched=on_features)
    outputs = in_chunks(members, samples, dim=1)
    return outputs[..., :classes], outputs[..., classes:]


def log_importance(
    replies: Replies, frozen: FlatModule, samples: Tensor, features: Tensor, *, sharing: bool
) -> Tensor:
    """log f, [K, n], of every member's discriminator, the replies' parts `discriminator`.

    Args:
        frozen: a module of their architecture.
        samples: [n, ...], which discriminators of their own judge.
        features: [K, n, F], the members' features of them, which heads on a shared trunk judge.
        sharing: whether they are such heads.
    """
    judges = Ensemble(frozen, list(replies.vectors("discriminator")), batched=sharing)
    judged = judges.each(features) if sharing else in_chunks(judges, samples, dim=1)
    # log f and not f: shares by softmax stay exact where every f underflows.
    return F.logsigmoid(judged.squeeze(2))
