"""Shapes of what generators make and heads take: images, feature maps, features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, last_maps
from rayfed_kd.models.whole_modules import head_of


class ModelSpaces(Mapping[str, tuple[int, ...]]):
    """Space ("images", "maps", "features", "logits") -> its shape, computed on access.

    A plain module has no maps, and the features of its last linear layer, if it ends in one.

    Args:
        images: shape of an image, (channels, height, width).
        classes: of the data.
        build: makes the recipe's model.
    """

    def __init__(self, images: tuple[int, ...], classes: int, build: Callable[[], nn.Module]) -> None:
        self._images, self._classes, self._build = images, classes, build

    def __getitem__(self, space: str) -> tuple[int, ...]:
        if space == "images":
            return self._images
        if space == "logits":
            return (self._classes,)
        with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
            model = self._build()
        if space == "features":
            width = model.feature_size if isinstance(model, Classifier) else head_of(model).in_features
            return (int(width),)  # type: ignore[arg-type]
        if not isinstance(model, Classifier):
            raise RecipeError(
                f"this method needs feature maps, and a {type(model).__name__} does not say where they come "
                "out; expected a model whose parts run one after the other: one of ours, most of "
                "torchvision's, or a rayfed_kd.models.base.Classifier",
                path="model.name",
            )
        return last_maps(model, self._images)[1]

    def __iter__(self) -> Iterator[str]:
        return iter(("images", "maps", "features", "logits"))

    def __len__(self) -> int:
        return 4


def shown_sides(shape: tuple[int, ...]) -> str:
    """A shape for messages, such as "3x32x32"."""
    return "x".join(map(str, shape))
