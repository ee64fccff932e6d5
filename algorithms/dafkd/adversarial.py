"""A generator and a discriminator that clients train beside their classifier.

Wang et al. 2023 (DaFKD), section 3.2, eq. 2, 3 and 9: the discriminator tells a client's real images
from generated ones, and the generator learns to be taken for real. The discriminator is a second head on the
classifier's trunk, or a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    ClientContext,
    Drawn,
    FlatModule,
    MethodOptions,
    PixelScale,
)
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.local_training import (
    Loss,
    Models,
    Phase,
    Tensors,
    label_loss,
    own_batches,
    train_on_labels,
    train_phases,
)
from rayfed_kd.toolbox.losses import adversarial_loss, cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer


class AdversarialGenerator(GeneratorOptions):
    """The shared generator; by default the image generator, for `generated: features` the dense one."""

    name: str = Field("conditional_image", description="a registered conditional generator")
    weight_decay: float = Field(1e-3, ge=0, description="Adam's weight decay")


class AdversarialOptions(MethodOptions):
    """What is generated, and how generator and discriminator learn."""

    generator: AdversarialGenerator = AdversarialGenerator()
    generated: Literal["images", "features"] = Field(
        "images", description="what the generator makes: images, or the trunk's features (Appendix A)"
    )
    generator_loss: Literal["non_saturating", "minmax"] = Field(
        "non_saturating", description="-log f(g(z)), or log(1 - f(g(z))) as eq. 3"
    )
    adversarial: bool = Field(True, description="train generator and discriminators at all")
    discriminator_rounds: int | None = Field(
        None, ge=0, description="rounds whose clients train discriminators; null: all. Released: 3"
    )
    generator_rounds: int | None = Field(
        None, ge=0, description="rounds whose clients train the generator; null: all. Released: 5"
    )
    adversarial_epochs: int | None = Field(
        None, ge=0, description="local epochs that do so, the first ones; null: all. Released: 5"
    )
    adversarial_weight: float = Field(1.0, ge=0, description="of L_adv, beside CE and penalty. Released: 2")
    gradient_penalty: float = Field(
        0.0, ge=0, description="weight of (|df / dx| - 1)^2 between real and generated. Released: 0.3"
    )
    sharing: bool = Field(True, description="the discriminator shares the classifier's trunk (Table 3)")

    @model_validator(mode="before")
    @classmethod
    def _dense_generator(cls, raw: Any) -> Any:
        """`generated: features` alone names the generator that makes them."""
        if isinstance(raw, Mapping) and raw.get("generated") == "features":
            generator = raw.get("generator", {})
            if isinstance(generator, Mapping):
                return {**raw, "generator": {"name": "dense_feature", **generator}}
        return raw

    @model_validator(mode="after")
    def _fitting(self) -> AdversarialOptions:
        if self.generated == "features" and not self.sharing:
            raise ValueError("generated: features are the shared trunk's: sharing: false has none to judge")
        return self

    def architectures(self) -> Mapping[str, Architecture]:
        """What contexts make as "generator" and "discriminator"."""
        generator = self.generator.architecture(self.generated, conditional=True)
        head = Architecture("head", "linear", {}, space="features", classes=1)
        classifier = Architecture("classifier", RECIPE_MODEL, {}, classes=1)
        return {"generator": generator, "discriminator": head if self.sharing else classifier}

    def train(self, student: FlatModule, others: Models, ctx: ClientContext) -> None:
        """A client's epochs: on each batch classifier and discriminator, then the generator.

        In rounds and epochs in which neither learns, the classifier trains on labels alone.

        Args:
            student: the classifier, trained by the recipe's optimiser.
            others: "discriminator", trained likewise, and "generator", by the options' optimiser.
            ctx: the client's; labels and noise of generated samples are from its streams of these names.
        """
        judging = self.adversarial and _in_first(self.discriminator_rounds, ctx)
        generating = self.adversarial and _in_first(self.generator_rounds, ctx)
        losses, generator = AdversarialLosses(self), others["generator"]
        optimizer = Optimizer(ctx.local.optimizer, student)
        phases = [Phase(label_loss, [optimizer])]
        if judging:
            head = Optimizer(ctx.local.optimizer, others["discriminator"])
            phases = [Phase(losses.classify_and_judge, [optimizer, head])]
        if generating:
            phases.append(Phase(losses.deceive, [Optimizer(self.generator.optimizer, generator)]))

        def further(drawn: Drawn) -> Tensors:
            wanted = uniform_labels(len(drawn.indices), ctx)
            made_of = {"wanted": wanted, "noise": noise(len(wanted), generator, ctx)}
            if self.gradient_penalty and judging:
                stream = ctx.stream("interpolation")
                made_of["mix"] = torch.rand(len(wanted), generator=stream, device=ctx.device)
            return made_of

        first = self.adversarial_epochs if judging or generating else 0
        epochs = None if first is None else range(min(first, ctx.passes))
        if epochs is None or epochs:
            models, batches = {"student": student, **others}, own_batches(ctx, epochs, further)
            train_phases(models, phases, batches, ctx, extras=ctx.scale._asdict())
        if epochs is not None:
            rest = range(len(epochs), ctx.passes) if epochs else None
            train_on_labels(student, ctx, rest, optimizer)

    def judge(self, models: Models) -> Judge:
        """The discriminator among "discriminator" and "student"."""
        trunk = models["student"] if self.sharing else None
        return Judge(models["discriminator"], trunk, on_features=self.generated == "features")


@dataclass(frozen=True)
class Judge:
    """A discriminator at work: logits log f / (1 - f), [batch], of samples being real.

    Generated samples pass BatchNorm layers with their own statistics and leave the running ones alone, as the
    classifier classifies real samples only. Wang et al. 2023 (DaFKD), section 3.2.

    Attributes:
        discriminator: takes the trunk's features, or samples where there is no trunk.
        trunk: the classifier whose features it shares; None: it shares none.
        on_features: generated samples are such features already.
    """

    discriminator: FlatModule
    trunk: FlatModule | None
    on_features: bool = False

    def real(self, images: Tensor, features: Tensor) -> Tensor:
        """Of real images, [batch, ...], whose features the classifier has computed, [batch, F]."""
        return self.discriminator(images if self.trunk is None else features).squeeze(1)

    def generated(self, samples: Tensor) -> Tensor:
        """Of generated images or features, [batch, ...]."""
        if self.trunk is None:
            with self.discriminator.keeping_statistics():
                return self.discriminator(samples).squeeze(1)
        # The discriminator is a linear head here, which has no running statistics.
        if self.on_features:
            return self.discriminator(samples).squeeze(1)
        with self.trunk.keeping_statistics():
            features = self.trunk.features(samples)
        return self.discriminator(features).squeeze(1)


@dataclass(frozen=True)
class AdversarialLosses:
    """The losses of a client's phases on a batch.

    Attributes:
        options: the method's.
    """

    options: AdversarialOptions

    def classify_and_judge(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE and L_adv over trunk and both heads (eq. 2, 9)."""
        student, images = models["student"], batch["images"]
        features = student.features(images)
        hard = cross_entropy(student.classify(features), batch["labels"], extras)
        generated = generate(models["generator"], batch["noise"], batch["wanted"], PixelScale.of(extras))
        judge = self.options.judge(models)
        # Detached, because the generator has a phase of its own; it gets `generated` with its graph.
        real, fake = judge.real(images, features), judge.generated(generated.detach())
        adversarial = adversarial_loss(real, fake)
        logged = {
            "ce": hard,
            "adversarial": adversarial,
            "real_right": (real > 0).float().mean(),
            "fake_right": (fake < 0).float().mean(),
        }
        loss = hard + self.options.adversarial_weight * adversarial
        if self.options.gradient_penalty:
            ends = features.detach() if judge.on_features else images
            logged["penalty"] = slope_penalty(judge, ends, generated.detach(), batch["mix"])
            loss = loss + self.options.gradient_penalty * logged["penalty"]
        return Loss(loss, logged, handed_on={"made": generated})

    def deceive(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """The generator's step: its images are to be taken for real (eq. 3)."""
        fake = batch.get("made")
        if fake is None:
            fake = generate(models["generator"], batch["noise"], batch["wanted"], PixelScale.of(extras))
        doubt = self.options.judge(models).generated(fake)
        # softplus(-x) = -log f, and -softplus(x) = log(1 - f), of logits x; both are stable.
        deceit = F.softplus(-doubt).mean()
        if self.options.generator_loss == "minmax":
            deceit = -F.softplus(doubt).mean()
        return Loss(deceit, {"deceit": deceit})


def slope_penalty(judge: Judge, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """The mean of (|df / dx| - 1)^2 at points x between real and generated samples, scalar.

    Gulrajani et al. 2017, arXiv 1704.00028, whose critic is f, the probability of being real, as in DaFKD's
    released code. The norm is a whole sample's; that code takes it over an image's channels alone.

    Args:
        judge: gradient of the penalty reaches it.
        real, fake: [batch, ...].
        mix: [batch], in [0, 1], the share of the real sample.
    """
    share = mix.view(-1, *[1] * (real.dim() - 1))

    def believed(samples: Tensor) -> Tensor:
        return torch.sigmoid(judge.generated(samples)).sum()

    # torch.func, because autograd.grad cannot run where a group of clients trains under vmap.
    slopes: Tensor = torch.func.grad(believed)(share * real + (1 - share) * fake)
    # The norm has no gradient at 0, hence the 1e-12.
    norms = (slopes.flatten(1).square().sum(1) + 1e-12).sqrt()
    return (norms - 1).square().mean()


def _in_first(rounds: int | None, ctx: ClientContext) -> bool:
    """Whether this round is one of the first so many; None: all are."""
    return rounds is None or ctx.round <= rounds
