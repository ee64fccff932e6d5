"""Perceptrons, for feature vectors and small images."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn

from rayfed_kd.models.base import Classifier, fully_connected, number_shape
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import Shape


@model_builder
def mlp(
    shape: Shape, classes: int, *, hidden: Annotated[int, Field(ge=1, description="hidden units")] = 64
) -> Classifier:
    """Flatten, fully connected `hidden` with ReLU, fully connected classes. Takes images and numbers."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(number_shape(shape, "mlp")), hidden), nn.ReLU())
    return Classifier(body, nn.Linear(hidden, classes), hidden)


@model_builder
def dense(
    shape: Shape,
    classes: int,
    *,
    units: Annotated[
        list[Annotated[int, Field(ge=1)]], Field(min_length=1, description="units of each hidden layer")
    ] = [32, 16],  # noqa: B006 -- read, never changed
) -> Classifier:
    """Flatten, fully connected `units` with ReLU each, fully connected classes. Takes images and numbers.

    With [32, 16] layers F1 to F3 of `m1`, with [128, 32] those of `m2`.
    """
    hidden = fully_connected(math.prod(number_shape(shape, "dense")), units)
    return Classifier(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(units[-1], classes), units[-1])
