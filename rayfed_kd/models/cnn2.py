"""The two-convolution network of the project's round benchmark."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from rayfed_kd.models.base import Classifier, image_shape, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


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
    channels, height, width = image_shape(shape, "cnn2", 4 + 3 * lost)
    sides = [((side - lost) // 2 - lost) // 2 for side in (height, width)]
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=padding),
        *pooled_relu(),
        nn.Conv2d(32, 64, 5, padding=padding),
        *pooled_relu(),
        nn.Flatten(),
        nn.Linear(64 * sides[0] * sides[1], 512),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(512, classes), 512)
