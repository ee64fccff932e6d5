"""Attention blocks, and a small vision transformer of them."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, image_shape

HIDDEN = -1e9  # a score that softmax makes 0, and no NaN where all places are hidden


class AttentionBlock(nn.Module):
    """Self-attention, then a perceptron four times as wide; each normalises first and adds to its input.

    Vaswani et al. 2017, arXiv 1706.03762; the norms where Xiong et al. 2020, arXiv 2002.04745, have them.
    Attention is written out: every step then has a rule for training clients as one program.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, places, width]; `mask`, [batch, places] bool, True where a place counts; None: all do."""
        batch, length, width = hidden.shape
        parts = self.asked(self.norm1(hidden)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        if mask is not None:
            scores = torch.where(mask[:, None, None], scores, HIDDEN)
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.answered(mixed)
        narrow: Tensor = self.narrow(F.gelu(self.wide(self.norm2(hidden))))
        return hidden + narrow


class Patches(nn.Module):
    """[batch, c, h, w] -> [batch, patches, width]: each patch through one layer, with a learned position."""

    def __init__(self, shape: Shape, side: int, width: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.project = nn.Conv2d(channels, width, side, stride=side)
        self.places = nn.Embedding((height // side) * (across // side), width)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, patches, width]."""
        patches: Tensor = self.project(images).flatten(2).transpose(1, 2)
        return patches + self.places.weight


class MeanOfPlaces(nn.Module):
    """[batch, places, width] -> [batch, width]."""

    def forward(self, hidden: Tensor) -> Tensor:
        """The mean over places."""
        return hidden.mean(dim=1)


def check_heads(width: int, heads: int) -> None:
    """Raise RecipeError unless the heads divide the width."""
    if width % heads:
        raise RecipeError(f"{heads} is no divisor of width = {width}", path="model.heads")


@model_builder
def small_vit(
    shape: Shape,
    classes: int,
    *,
    patch: Annotated[int, Field(ge=1, description="side of a patch, a divisor of the images' sides")] = 4,
    width: Annotated[int, Field(ge=1, description="length of a patch's embedding, and of the features")] = 64,
    heads: Annotated[int, Field(ge=1, description="attention heads; a divisor of width")] = 4,
    layers: Annotated[int, Field(ge=1, description="attention blocks")] = 4,
) -> Classifier:
    """A small vision transformer: patches, learned positions, attention blocks, their mean; no dropout.

    The form of Dosovitskiy et al. 2021, arXiv 2010.11929, with the mean of all patches for a class token.
    207,946 parameters for 3x32x32 and 10 classes.
    """
    images = image_shape(shape, "small_vit", patch)
    if images[1] % patch or images[2] % patch:
        raise RecipeError(
            f"small_vit cuts images into patches of {patch}x{patch}, this data has {images[1]}x{images[2]}",
            path="model.patch",
        )
    check_heads(width, heads)
    blocks = [AttentionBlock(width, heads) for _ in range(layers)]
    body = nn.Sequential(Patches(images, patch, width), *blocks, nn.LayerNorm(width), MeanOfPlaces())
    return Classifier(body, nn.Linear(width, classes), width)
