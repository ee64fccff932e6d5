"""Perceptrons, for feature vectors, small images, and rows of numbers and categories."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_kd.models.base import Classifier, Counts, fully_connected
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import RowShape, Shape, number_shape, row_shape

Units = Annotated[Counts, Field(min_length=1, description="units of each hidden layer")]


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
    units: Units = [32, 16],  # noqa: B006 -- read, never changed
) -> Classifier:
    """Flatten, fully connected `units` with ReLU each, fully connected classes. Takes images and numbers.

    With [32, 16] layers F1 to F3 of `m1`, with [128, 32] those of `m2`.
    """
    hidden = fully_connected(math.prod(number_shape(shape, "dense")), units)
    return Classifier(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(units[-1], classes), units[-1])


class RowEmbedding(nn.Module):
    """[batch, numbers + categories] -> [batch, numbers + categories x width]."""

    def __init__(self, row: RowShape, width: int) -> None:
        super().__init__()
        self.numbers = row.numbers
        self.embeddings = nn.ModuleList(nn.Embedding(codes, width) for codes in row.categories)

    def forward(self, rows: Tensor) -> Tensor:
        """The numbers, and each category's embedding."""
        codes = rows[:, self.numbers :].to(torch.int64)
        embedded = [embedding(codes[:, place]) for place, embedding in enumerate(self.embeddings)]
        return torch.cat([rows[:, : self.numbers], *embedded], dim=1)


@model_builder
def row_mlp(
    shape: Shape,
    classes: int,
    *,
    width: Annotated[int, Field(ge=1, description="length of each category's embedding")] = 8,
    units: Units = [64, 32],  # noqa: B006 -- read, never changed
) -> Classifier:
    """An embedding for each category, beside the numbers; fully connected `units` with ReLU; classes.

    It takes rows whose categories are codes: `data.categories=codes`.
    """
    row = row_shape(shape, "row_mlp")
    embedding = RowEmbedding(row, width)
    body = nn.Sequential(embedding, *fully_connected(row.numbers + width * len(row.categories), units))
    return Classifier(body, nn.Linear(units[-1], classes), units[-1])
