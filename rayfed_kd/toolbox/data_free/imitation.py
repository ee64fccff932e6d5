"""Data-free distillation: a generator that learns from a frozen teacher alone what to show a student.

Chen et al. 2019 (DAFL), arXiv 1904.01186; as FedKF writes it: Zhou et al. 2023, section IV-C, eq. 2 to 5.
Used at FedKF's clients, and alone in FedKF's Table IV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Context, MethodOptions
from rayfed_kd.toolbox.generation import SHOWN, GeneratorOptions, Normaliser, generate
from rayfed_kd.toolbox.local_training import Loss
from rayfed_kd.toolbox.losses import activation_loss, information_entropy_loss, kl_divergence, one_hot_loss


class ImitationOptions(MethodOptions):
    """The options of L_G; the defaults are the paper's."""

    generator: GeneratorOptions = GeneratorOptions()
    lambda1: float = Field(0.1, ge=0, description="weight of the one-hot loss (eq. 5)")
    lambda2: float = Field(0.1, ge=0, description="weight of the activation loss (eq. 5)")
    activation: Literal["mean", "sum"] = Field("mean", description="L_A over features; eq. 4 prints the sum")
    entropy: Literal["raw", "normalised"] = Field("raw", description="L_IE: eq. 3, or 1 - H / log C")
    adversarial: float = Field(
        0.0, ge=0, description="weight of KL(teacher, student) that the generator seeks"
    )


@dataclass(frozen=True)
class GeneratorState:
    """A generator between two uses.

    Attributes:
        generator: [G], theta.
        moments: its Adam's state; empty before its first step.
    """

    generator: Tensor
    moments: Mapping[str, Tensor]


class Imagined(NamedTuple):
    """A generated batch as the teacher sees it; gradient reaches the generator.

    Attributes:
        images: [batch, c, h, w], x^, normalised as the model sees real ones.
        features: [batch, feature_size], f^, the input of the teacher's last layer.
        logits: [batch, classes], the teacher's.
    """

    images: Tensor
    features: Tensor
    logits: Tensor


def imagine(generator: FlatModule, teacher: FlatModule, z: Tensor, scale: Normaliser) -> Imagined:
    """A batch from noise, [batch, latent], with the frozen teacher's view of it."""
    images = generate(generator, z, None, scale)
    # L_A needs the features and L_IE and L_OH the logits: the trunk is computed once for all.
    features = teacher.features(images)
    return Imagined(images, features, teacher.classify(features))


def generator_loss(imagined: Imagined, student: FlatModule, options: ImitationOptions) -> Loss:
    """L_G (eq. 5), which the generator minimises; with `adversarial` it seeks what the student gets wrong."""
    entropy = information_entropy_loss(imagined.logits, normalised=options.entropy == "normalised")
    one_hot = one_hot_loss(imagined.logits)
    active = activation_loss(imagined.features, reduction=options.activation)
    logged = {"information_entropy": entropy, "one_hot": one_hot, "activation": active}
    loss = entropy + options.lambda1 * one_hot + options.lambda2 * active
    if options.adversarial:
        logged["disagreement"] = kl_divergence(imagined.logits, student(imagined.images))
        loss = loss - options.adversarial * logged["disagreement"]
    return Loss(loss, logged)


def drawn_samples(state: GeneratorState, teacher: FlatModule, ctx: Context) -> tuple[Tensor, Tensor]:
    """64 generated images, [64, c, h, w] in [0, 1], with the classes that the teacher predicts."""
    generator = ctx.frozen_model(state.generator, "generator")
    with torch.no_grad():
        latents = torch.randn(SHOWN, generator.latent, generator=ctx.stream("shown"), device=ctx.device)
        images = generate(generator, latents, None, ctx)
        return ctx.pixels(images), teacher(images).argmax(dim=1)
