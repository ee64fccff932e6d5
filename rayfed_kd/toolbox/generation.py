"""Drawing from generators: their options, class labels, noise, and samples as a classifier sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.base import last_maps
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Architecture, ClientContext, Context, PixelScale, Samples
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.local_training import OwnBatch

SHOWN = 64


class GeneratorOptions(BaseModel):
    """A generator: a registered name, its Adam's rates, and the generator's own options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str = Field("dafl_image", description="a registered generator or package.module:Object")
    lr: float = Field(0.001, gt=0, description="Adam's learning rate")
    weight_decay: float = Field(0.0, ge=0, description="Adam's weight decay")

    def architecture(
        self, space: Literal["images", "maps", "features"] = "images", *, conditional: bool = False
    ) -> Architecture:
        """What contexts make as "generator"."""
        return Architecture(
            "generator", self.name, self.model_extra or {}, space=space, conditional=conditional
        )

    @property
    def optimizer(self) -> OptimizerRecipe:
        """Adam with these rates."""
        return OptimizerRecipe(name="adam", lr=self.lr, weight_decay=self.weight_decay)


def noise(count: int, generator: FlatModule, ctx: Context) -> Tensor:
    """[count, latent], Gaussian, from the step's stream "noise"."""
    return torch.randn(count, generator.latent, generator=ctx.stream("noise"), device=ctx.device)


def uniform_labels(count: int, ctx: Context) -> Tensor:
    """[count] int64 classes, uniform, from the step's stream "labels"."""
    return torch.randint(ctx.classes, (count,), generator=ctx.stream("labels"), device=ctx.device)


# What normalises generated images: a step's context; in a loss, which gets none, a `PixelScale`.
Normaliser = Context | PixelScale


def generate(generator: FlatModule, z: Tensor, labels: Tensor | None, scale: Normaliser) -> Tensor:
    """Samples as the classifier sees them: [batch, c, h, w] normalised images, maps, or features.

    Args:
        z: [batch, latent].
        labels: [batch], for a conditional generator.
        scale: how images in [0, 1] are normalised.
    """
    samples = generator(z) if labels is None else generator(z, labels)
    return samples if generator.standardised else scale.normalise(samples)


def class_samples(generator: FlatModule, model: FlatModule, ctx: Context) -> Samples:
    """64 images to look at of a conditional generator, its classes in turn, with what the model predicts."""
    labels = torch.arange(SHOWN, device=ctx.device) % ctx.classes
    with torch.no_grad():
        images = generate(generator, noise(SHOWN, generator, ctx), labels, ctx)
        predicted = model(images).argmax(dim=1)
    return Samples(ctx.pixels(images).cpu(), predicted.cpu())


def pooled_labels(ctx: ClientContext) -> Iterator[Tensor]:
    """Uniform labels, drawn once, in step with a client's batches (KDIA, section 5.3, Algorithm 2).

    As many labels as samples, in an order of its own each epoch. A client with fewer samples than a
    batch has E times as many labels, and every epoch takes its own slice. They are drawn from the streams
    "labels" and "label order".
    """
    samples = ctx.num_samples
    sliced = samples < ctx.local.batch_size
    pool = uniform_labels(samples * ctx.passes if sliced else samples, ctx)
    for epoch in range(ctx.passes):
        if sliced:
            labels = pool[epoch * samples : (epoch + 1) * samples]
        else:
            stream = ctx.stream("label order")
            labels = pool[torch.randperm(samples, generator=stream, device=ctx.device)]
        yield from ctx.in_batches(labels)


def labelled_noise_batches(
    generator: FlatModule, ctx: ClientContext, *, generating: bool, drop_last: bool
) -> Iterator[OwnBatch]:
    """A client's batches for `train_phases`, each with as many labels "wanted" from a pool, and with "noise".

    Args:
        generator: whose noise it is.
        ctx: the client's.
        generating: otherwise batches have neither, and no noise is drawn.
        drop_last: a short last batch is left out; it counts as drawn.
    """
    # Both are N_k in batches of one pass, so a batch has as many labels as samples. The last pass may be a
    # part of one, which leaves labels over.
    for drawn, wanted in zip(ctx.local_batches(), pooled_labels(ctx), strict=False):
        size = len(wanted)
        # A client with fewer samples than a batch keeps its only one: it would train on nothing.
        if drop_last and size < ctx.local.batch_size <= ctx.num_samples:
            ctx.count_drawn(size)
        elif generating:
            yield drawn, {"wanted": wanted, "noise": noise(size, generator, ctx)}
        else:
            yield drawn, {}


COMPARED = 64  # generated maps of each class


def stage_of_maps(model: FlatModule, ctx: Context) -> int:
    """After how many stages a classifier's last feature maps come out: where a generator's take over.

    Raises: RecipeError if no stage gives maps.
    """
    return last_maps(model.module, ctx.shape)[0]  # type: ignore[arg-type]


def class_directions(model: FlatModule, ctx: ClientContext) -> tuple[Tensor, Tensor]:
    """Sums of unit vectors of a client's own feature maps by class, [C, F], and their numbers, [C]."""
    stage = stage_of_maps(model, ctx)
    counts = torch.zeros(ctx.classes, dtype=torch.float32, device=ctx.device)
    # F is known with the first batch.
    sums = torch.zeros(ctx.classes, 0, device=ctx.device)
    with torch.no_grad():
        for images, labels in ctx.epoch(0, every=True):
            units = F.normalize(model.between(0, stage, images).flatten(1), dim=1)
            if not sums.numel():
                sums = units.new_zeros(ctx.classes, units.shape[1])
            sums.index_add_(0, labels, units)
            counts += torch.bincount(labels, minlength=ctx.classes)
    return sums, counts


def mean_cosines(sums: Sequence[Tensor], counts: Sequence[Tensor], directions: Tensor) -> Tensor:
    """The mean cosine of a class's unit vectors and a direction, [C]; NaN for a class without vectors.

    Args:
        sums: [C, F] of each client, the sum of each class's unit vectors.
        counts: [C] of each client, their numbers.
        directions: [C, F], a vector of each class.
    """
    numbers = torch.stack(list(counts)).sum(0)
    # The mean of products with one vector is the product with the mean: sums are all that clients send.
    means = torch.stack(list(sums)).sum(0) / numbers.clamp(min=1)[:, None]
    cosines = (means * directions).sum(1)
    cosines[numbers == 0] = torch.nan
    return cosines


def generated_directions(generator: FlatModule, ctx: Context) -> Tensor:
    """The mean unit vector of generated maps of each class, [C, F], on the CPU."""
    labels = torch.arange(ctx.classes, device=ctx.device).repeat_interleave(COMPARED)
    with torch.no_grad():
        maps = generate(generator, noise(len(labels), generator, ctx), labels, ctx)
    units = F.normalize(maps.flatten(1), dim=1)
    return units.view(ctx.classes, COMPARED, -1).mean(1).cpu()
