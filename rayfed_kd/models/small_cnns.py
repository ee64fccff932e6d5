"""Small convolutional networks: LeNet-5 (FedKF), MOON's (KDIA), FedD2S' two, and that of McMahan et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

from rayfed_kd.models.base import Classifier, fully_connected, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape, image_shape


@model_builder
def lenet5(shape: Shape, classes: int) -> Classifier:
    """Two 5x5 convolutions (6, 16) with ReLU and 2x2 max pooling, fully connected 120, 84, classes.

    LeCun et al. 1998; 61,706 parameters for 1x28x28 and 10 classes. Images below 32x32 are padded by
    2 in the first convolution; where the second would see fewer than 6 pixels, it is padded, too.
    """
    images = image_shape(shape, "lenet5", 4)
    # Below 32, 28x28 and digits' 8x8 among them, the first convolution pads by 2 and keeps the size.
    first = 0 if min(images[1:]) >= 32 else 2
    # 12 pixels are pooled to 6; the convolution leaves 2 of them, and the second pooling 1.
    second = 0 if min(images[1:]) + 2 * first - 4 >= 12 else 2
    body = nn.Sequential(*_two_convolutions(images, (6, 16), (first, second), (120, 84)))
    return Classifier(body, nn.Linear(84, classes), 84)


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
    layers = _two_convolutions(image_shape(shape, "simple_cnn", 16), (6, 16), (0, 0), (120, 84))
    if projection:
        layers += [nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256)]
    width_out = 256 if projection else 84
    return Classifier(nn.Sequential(*layers), nn.Linear(width_out, classes), width_out)


@model_builder
def cnn2(
    shape: Shape,
    classes: int,
    *,
    padding: Annotated[
        int, Field(ge=0, le=2, description="of both convolutions; 0 as PFLlib's FedAvgCNN has it")
    ] = 2,
) -> Classifier:
    """Two 5x5 convolutions (32, 64; padding 2) with ReLU and 2x2 max pooling, fully connected 512.

    McMahan et al. 2017's network; 2,156,490 parameters for 3x32x32 and 10 classes, 878,538 without padding.
    """
    lost = 2 * (2 - padding)  # pixels of a side that a convolution takes away
    images = image_shape(shape, "cnn2", 4 + 3 * lost)
    body = nn.Sequential(*_two_convolutions(images, (32, 64), (padding, padding), (512,)))
    return Classifier(body, nn.Linear(512, classes), 512)


def _two_convolutions(
    images: tuple[int, int, int], maps: tuple[int, int], paddings: tuple[int, int], units: Sequence[int]
) -> list[nn.Module]:
    """Two 5x5 convolutions with ReLU and 2x2 max pooling each, then full layers with ReLU."""
    first, second = paddings
    sides = [((side + 2 * first - 4) // 2 + 2 * second - 4) // 2 for side in images[1:]]
    convolutions = [
        *(nn.Conv2d(images[0], maps[0], 5, padding=first), *pooled_relu()),
        *(nn.Conv2d(*maps, 5, padding=second), *pooled_relu()),
    ]
    return [*convolutions, nn.Flatten(), *fully_connected(maps[1] * sides[0] * sides[1], units)]


@model_builder
def m1(shape: Shape, classes: int) -> Classifier:
    """Convolutions C1(8), C2(16), C3(32), fully connected layers F1(32), F2(16), F3(classes).

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
