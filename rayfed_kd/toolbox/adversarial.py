"""A generator and a discriminator that clients train beside their classifier.

Wang et al., CVPR 2023 (DaFKD), section 3.2, eq. 2, 3 and 9: the discriminator tells a client's real images
from generated ones, and the generator learns to be taken for real. The discriminator is a second head on the
classifier's trunk, or a model of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    ClientContext,
    MethodOptions,
    PixelScale,
)
from rayfed_kd.toolbox.generation import GeneratorOptions, generate, noise, uniform_labels
from rayfed_kd.toolbox.local_training import Loss, Models, OwnBatch, Phase, Tensors, train_phases
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
    sharing: bool = Field(True, description="the discriminator shares the classifier's trunk (Table 3)")

    @model_validator(mode="before")
    @classmethod
    def _dense_generator(cls, raw: Any) -> Any:
        """`generated: features` alone names the generator that makes them."""
        if isinstance(raw, Mapping) and raw.get("generated") == "features":
            given = raw.get("generator", {})
            if isinstance(given, Mapping):
                return {**raw, "generator": {"name": "dense_feature", **given}}
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
        whole = Architecture("classifier", RECIPE_MODEL, {}, classes=1)
        return {"generator": generator, "discriminator": head if self.sharing else whole}

    def judge(self, models: Models) -> Judge:
        """The discriminator among "discriminator" and "student"."""
        trunk = models["student"] if self.sharing else None
        return Judge(models["discriminator"], trunk, on_features=self.generated == "features")


@dataclass(frozen=True)
class Judge:
    """A discriminator at work: logits log f / (1 - f), [batch], of samples being real.

    Generated samples pass BatchNorm layers with their own statistics and leave the running ones alone, as the
    classifier classifies real samples only. DaFKD, Wang et al., CVPR 2023, section 3.2.

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
    """The losses of a client's two phases on a batch.

    Attributes:
        options: the method's.
    """

    options: AdversarialOptions

    def classify_and_judge(self, models: Models, batch: Tensors, given: Tensors) -> Loss:
        """CE and L_adv over trunk and both heads (eq. 2, 9)."""
        student, images = models["student"], batch["images"]
        features = student.features(images)
        hard = cross_entropy(student.classify(features), batch["labels"])
        generated = generate(models["generator"], batch["noise"], batch["wanted"], PixelScale(**given))
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
        return Loss(hard + adversarial, logged, handed_on={"made": generated})

    def deceive(self, models: Models, batch: Tensors, given: Tensors) -> Loss:
        """The generator's step: its images are to be taken for real (eq. 3)."""
        doubt = self.options.judge(models).generated(batch["made"])
        # softplus(-x) = -log f, and -softplus(x) = log(1 - f), of logits x; both are stable.
        deceit = F.softplus(-doubt).mean()
        if self.options.generator_loss == "minmax":
            deceit = -F.softplus(doubt).mean()
        return Loss(deceit, {"deceit": deceit})


def train_adversarially(models: Models, options: AdversarialOptions, ctx: ClientContext) -> None:
    """A client's epochs: on each batch classifier and discriminator, then the generator.

    Args:
        models: "student", "discriminator" and "generator", all to be trained; the first two by the recipe's
            optimiser, the third by the options'.
        options: the method's.
        ctx: the client's; labels and noise of generated samples are from its streams "labels" and "noise".
    """
    losses, generator = AdversarialLosses(options), models["generator"]
    heads = [Optimizer(ctx.local.optimizer, models[name]) for name in ("student", "discriminator")]
    deceit = Phase(losses.deceive, [Optimizer(options.generator.optimizer, generator)])

    def batches() -> Iterator[OwnBatch]:
        for epoch in range(ctx.local.epochs):
            for drawn in ctx.batches(epoch):
                wanted = uniform_labels(len(drawn.indices), ctx)
                yield drawn, {"wanted": wanted, "noise": noise(len(wanted), generator, ctx)}

    phases = [Phase(losses.classify_and_judge, heads), deceit]
    train_phases(models, phases, batches, ctx, given=ctx.scale._asdict())
