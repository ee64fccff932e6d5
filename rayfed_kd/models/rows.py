"""A perceptron of rows: numbers as they are, categories by an embedding each."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_kd.models.base import Classifier, fully_connected, row_shape
from rayfed_kd.recipe.roles import model_builder
from rayfed_kd.recipe.sample_shapes import RowShape, Shape


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
    units: Annotated[
        list[Annotated[int, Field(ge=1)]], Field(min_length=1, description="units of each hidden layer")
    ] = [64, 32],  # noqa: B006 -- read, never changed
) -> Classifier:
    """An embedding for each category, beside the numbers; fully connected `units` with ReLU; classes.

    It takes rows whose categories are codes: `data.categories=codes`.
    """
    row = row_shape(shape, "row_mlp")
    embedding = RowEmbedding(row, width)
    body = nn.Sequential(embedding, *fully_connected(row.numbers + width * len(row.categories), units))
    return Classifier(body, nn.Linear(units[-1], classes), units[-1])
