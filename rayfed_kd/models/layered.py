"""FedD2S' two layered networks: three convolutions C1 to C3, three fully connected layers F1 to F3."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rayfed_kd.models.base import Classifier, fully_connected, image_shape, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


@model_builder
def m1(shape: Shape, classes: int) -> Classifier:
    """C1(8), C2(16), C3(32), F1(32), F2(16), F3(classes).

    Atapour et al. 2024, arXiv 2402.10846, section IV-A. 23,146 parameters for 3x32x32 and 10 classes.
    """
    return _layered(shape, classes, (8, 16, 32), (32, 16), "m1")


@model_builder
def m2(shape: Shape, classes: int) -> Classifier:
    """C1(16), C2(64), C3(128), F1(128), F2(32), F3(classes), as `m1`.

    353,284 parameters for 3x32x32 and 100 classes, 237,054 for 1x28x28 and 62.
    """
    return _layered(shape, classes, (16, 64, 128), (128, 32), "m2")


def _layered(shape: Shape, classes: int, maps: Sequence[int], units: Sequence[int], name: str) -> Classifier:
    """3x3 convolutions (padding 1) with ReLU and 2x2 max pooling each, then full layers with ReLU."""
    into, height, width = image_shape(shape, name, 8)
    body: list[nn.Module] = []
    for out in maps:
        body += [nn.Conv2d(into, out, 3, padding=1), *pooled_relu()]
        into = out
    body.append(nn.Flatten())
    into *= (height // 8) * (width // 8)
    body += fully_connected(into, units)
    return Classifier(nn.Sequential(*body), nn.Linear(units[-1], classes), units[-1])
