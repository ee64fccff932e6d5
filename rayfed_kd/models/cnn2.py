"""The two-convolution network of the project's round benchmark."""

from __future__ import annotations

from torch import nn

from rayfed_kd.models.base import Classifier, image_shape, pooled_relu
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


@model_builder
def cnn2(shape: Shape, classes: int) -> Classifier:
    """Two 5x5 convolutions (32, 64; padding 2) with ReLU and 2x2 max pooling, fully connected 512.

    McMahan et al. 2017's network; 2,156,490 parameters for 3x32x32 and 10 classes.
    """
    channels, height, width = image_shape(shape, "cnn2", 4)
    body = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        *pooled_relu(),
        nn.Conv2d(32, 64, 5, padding=2),
        *pooled_relu(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )
    return Classifier(body, nn.Linear(512, classes), 512)
