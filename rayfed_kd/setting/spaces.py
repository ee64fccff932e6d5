"""Shapes of what generators make and heads take: images, feature maps, features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import Classifier, last_maps


class ModelSpaces(Mapping[str, tuple[int, ...]]):
    """Shapes by space, found when they are asked for: a plain model needs neither maps nor features."""

    def __init__(self, images: tuple[int, ...], build: Callable[[], nn.Module]) -> None:
        self._images, self._build = images, build

    def __getitem__(self, space: str) -> tuple[int, ...]:
        if space == "images":
            return self._images
        with torch.random.fork_rng(devices=[]):
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
    return "x".join(map(str, shape))
