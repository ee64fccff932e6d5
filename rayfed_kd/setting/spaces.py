"""Shapes of what generators make and heads take: images, feature maps, features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, last_maps


class ModelSpaces(Mapping[str, tuple[int, ...]]):
    """Space ("images", "maps", "features") -> its shape, computed on access.

    A plain module has neither maps nor features; a method that needs none of them may use it.

    Args:
        images: shape of an image, (channels, height, width).
        build: makes the recipe's model.
    """

    def __init__(self, images: tuple[int, ...], build: Callable[[], nn.Module]) -> None:
        self._images, self._build = images, build

    def __getitem__(self, space: str) -> tuple[int, ...]:
        if space == "images":
            return self._images
        with torch.random.fork_rng(devices=[]):  # layers draw initial values from the global generator
            model = self._build()
        if not isinstance(model, Classifier):
            raise RecipeError(
                f"a {type(model).__name__} has no {space}; expected a rayfed_kd.models.base.Classifier",
                path="model.name",
            )
        return last_maps(model, self._images)[1] if space == "maps" else (model.feature_size,)

    def __iter__(self) -> Iterator[str]:
        return iter(("images", "maps", "features"))

    def __len__(self) -> int:
        return 3


def shown_sides(shape: tuple[int, ...]) -> str:
    """A shape for messages, such as "3x32x32"."""
    return "x".join(map(str, shape))
