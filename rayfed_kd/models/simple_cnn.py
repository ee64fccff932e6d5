"""MOON's small network, which KDIA's tables use as well."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from rayfed_kd.models.base import Classifier, image_shape, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


@model_builder
def simple_cnn(
    shape: Shape,
    classes: int,
    *,
    projection: Annotated[bool, Field(description="the two-layer projection head, 84-84-256")] = True,
) -> Classifier:
    """Two 5x5 convolutions (6, 16), fully connected 120, 84, then the projection head.

    Li et al. 2021, arXiv 2103.16257, section 4; 92,626 parameters for 3x32x32 and 10 classes, 62,006
    without the projection.
    """
    channels, height, width = image_shape(shape, "simple_cnn", 16)
    flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 6, 5),
        *pooled_relu(),
        nn.Conv2d(6, 16, 5),
        *pooled_relu(),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
    ]
    if projection:
        layers += [nn.ReLU(), nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256)]
    else:
        layers += [nn.ReLU()]
    width_out = 256 if projection else 84
    return Classifier(nn.Sequential(*layers), nn.Linear(width_out, classes), width_out)
