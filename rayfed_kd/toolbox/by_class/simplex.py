"""A classifier of fixed, equally distant directions, one a class: a simplex equiangular tight frame (ETF)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    ClientContext,
    Declaration,
    MethodOptions,
    OneExchange,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import mean_rows
from rayfed_kd.toolbox.layers import check_equal_features, head_place
from rayfed_kd.toolbox.own_models import OwnModels

State = TypeVar("State")
SMALL = 1e-7  # arccos has an infinite slope at 1 and -1


def simplex(num_classes: int, seed: int) -> Tensor:
    """sqrt(C / (C - 1)) P (I - 11' / C), [C, C], with P orthonormal; column c is the direction of class c.

    The columns have length 1 and cosines -1 / (C - 1) with one another.

    Args:
        num_classes: C, 2 or more.
        seed: of P, drawn on the CPU in float64, so that all parties have the same.
    """
    normal = torch.randn(num_classes, num_classes, generator=torch.Generator().manual_seed(seed))
    rotation, _ = torch.linalg.qr(normal.double())
    return frame(rotation).float()


def frame(rotation: Tensor) -> Tensor:
    """The frame of an orthonormal P, [C, C]."""
    count = len(rotation)
    centring = torch.eye(count).to(rotation) - 1 / count
    return math.sqrt(count / (count - 1)) * rotation @ centring


def angular_logits(
    outputs: Tensor, labels: Tensor, directions: Tensor, margin: float, scale: float
) -> Tensor:
    """scale cos(angle), with the margin added to the angle of a sample's own class: ArcFace.

    Deng, Guo, Xue, Zafeiriou 2019, arXiv 1801.07698, eq. 3.

    Args:
        outputs: [batch, C]; gradient passes.
        labels: [batch] int64.
        directions: [C, C], of length 1, one a column.
        margin: radians.
    Returns: [batch, C], for cross entropy.
    """
    cosines = (F.normalize(outputs, dim=1) @ directions).clamp(-1 + SMALL, 1 - SMALL)
    own = F.one_hot(labels, outputs.shape[1]).bool()
    return scale * torch.where(own, torch.cos(torch.acos(cosines) + margin), cosines)


def turned(head: Tensor, directions: Tensor) -> Tensor:
    """The linear layer whose largest output is the class of the nearest direction of another one's output.

    Args:
        head: [C K_f + C], the layer: weights row by row, then biases.
        directions: [C, C], one a column.
    Returns: the same shape: E' W and E' b.
    """
    count = len(directions)
    weights, biases = head[:-count].view(count, -1), head[-count:]
    return torch.cat([(directions.T @ weights).flatten(), directions.T @ biases])


class SimplexOptions(MethodOptions):
    """Which directions the classes have, and how outputs are held against them; as released by FedKTL."""

    etf_seed: int = Field(0, ge=0, description="what the directions of the classes are drawn from")
    margin: float = Field(0.5, ge=0, lt=math.pi, description="added to the own class's angle, radians")
    scale: float = Field(64.0, gt=0, description="what cosines are multiplied by")


class SimplexClients(OwnModels, OneExchange[State, Tensor]):
    """Clients of any architecture, each with a model of its own, whose outputs are compared to a simplex.

    They send the mean direction of their outputs for each class. A method on it says how they train and what
    the server makes of this.
    """

    options: Any
    up: ClassVar[Declaration] = {"outputs": Unaligned("prototypes"), "classes": "labels"}
    heterogeneous: ClassVar[bool] = True

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless all models end in a linear layer, with features of one length."""
        check_equal_features(ctx)
        for name in ctx.client_architectures:
            head_place(ctx.frozen_model(ctx.initial_vector(name), name))

    def uploaded(self, own: Tensor, ctx: ClientContext) -> Reply:
        """The normalised mean of a model's normalised outputs, over a client's samples of each class."""
        means = mean_rows(ctx.frozen_model(own), unit_outputs, ctx)
        return Reply(outputs=F.normalize(means.values, dim=1), classes=means.classes)

    def personal(self, client: Tensor, ctx: ClientContext) -> Tensor:
        """The client's model, [P_k], its last layer turned: the largest output is the largest cosine."""
        place, whole = head_place(ctx.frozen_model(client)), client.clone()
        whole[place] = turned(client[place], simplex(ctx.classes, self.options.etf_seed).to(client))
        return whole


def unit_outputs(model: FlatModule, images: Tensor) -> Tensor:
    """A model's outputs of length 1, [batch, C]."""
    return F.normalize(model(images), dim=1)
