"""How alike generated and real feature maps of a class are: KDIA, Ma et al. 2025, Fig. 7."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.base import last_maps
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext, Context
from rayfed_kd.toolbox.generation import generate, noise

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
    sums = torch.zeros(ctx.classes, 0, device=ctx.device)
    with torch.no_grad():
        for images, labels in ctx.epoch(0):
            units = F.normalize(model.up_to(stage, images).flatten(1), dim=1)
            if not sums.numel():
                sums = units.new_zeros(ctx.classes, units.shape[1])
            sums.index_add_(0, labels, units)
            counts += torch.bincount(labels, minlength=ctx.classes)
    return sums, counts


def generated_directions(generator: FlatModule, ctx: Context) -> Tensor:
    """The mean unit vector of generated maps of each class, [C, F], on the CPU."""
    labels = torch.arange(ctx.classes, device=ctx.device).repeat_interleave(COMPARED)
    with torch.no_grad():
        maps = generate(generator, noise(len(labels), generator, ctx), labels, ctx)
    units = F.normalize(maps.flatten(1), dim=1)
    return units.view(ctx.classes, COMPARED, -1).mean(1).cpu()
