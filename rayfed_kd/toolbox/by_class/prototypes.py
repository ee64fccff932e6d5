"""Clients of any architecture that draw their features to prototypes: FedProto, FedTGP.

A client trains a model of its own on CE + lambda L_R, where L_R is the distance of its features from the
prototypes that it received, and sends the mean features of its classes. A class without a prototype has no
term. Two ways of prediction are evaluated: each model's own last layer, and the nearest prototype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Architecture,
    ClientContext,
    Completing,
    Declaration,
    Evaluable,
    Message,
    MethodOptions,
    OneExchange,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import PerClass, mean_features, spread
from rayfed_kd.toolbox.layers import check_equal_features
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.own_models import OwnModels

NEAREST = "nearest"
Distance = Literal["mse", "l2sq", "l2"]


class PrototypeOptions(MethodOptions):
    """How clients are drawn to prototypes."""

    lambda_proto: float = Field(1.0, ge=0, description="weight of the distance from the prototypes, lambda")
    distance: Distance = Field(
        "mse",
        description="mean squared difference from features; l2sq: squared Euclidean distance; l2: Euclidean "
        "distance of a batch's mean feature of a class, summed over classes",
    )


class Prototypes(Protocol):
    """What the server's state has: the prototypes, None before the first, and C."""

    @property
    def prototypes(self) -> PerClass | None: ...

    @property
    def num_classes(self) -> int: ...


State = TypeVar("State", bound=Prototypes)


class PrototypeClients(OwnModels, OneExchange[State, Tensor]):
    """The clients and the evaluation; a method on it says what the server makes of clients' prototypes."""

    options: Any
    down: ClassVar[Declaration] = {"prototypes": "prototypes", "classes": "labels"}
    up: ClassVar[Declaration] = {
        "prototypes": Unaligned("prototypes"),
        "classes": "labels",
        "counts": "counts",
    }
    heterogeneous: ClassVar[bool] = True
    evaluates: ClassVar[Sequence[str]] = ("personal", "nearest")

    def architectures(self) -> Mapping[str, Architecture]:
        """The linear layer that predicts the class of the nearest prototype."""
        return {NEAREST: Architecture("head", "linear", {}, space="features")}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless all models have features, and of one length."""
        check_equal_features(ctx)

    def dispatch(self, server: State, ctx: ServerContext) -> Message:
        """Send the prototypes with the classes that they are of; before the first, nothing."""
        if server.prototypes is None:
            return Message()
        return Message(prototypes=server.prototypes.values, classes=server.prototypes.classes)

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's own model on L, without L_R before the first prototypes; send its own."""
        student = ctx.model(client)
        if self.options.lambda_proto and "prototypes" in message:
            rows, present = spread(message["classes"], message["prototypes"], ctx.classes)
            train_batches({"student": student}, self.loss, ctx, extras={"rows": rows, "present": present})
        else:
            train_on_labels(student, ctx)
        vector = student.vector()
        return vector, self.uploaded(mean_features(ctx.frozen_model(vector), ctx))

    def uploaded(self, prototypes: PerClass) -> Reply:
        """What of its prototypes a client sends: all."""
        return Reply(prototypes=prototypes.values, classes=prototypes.classes, counts=prototypes.counts)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L = CE + lambda L_R."""
        labels, student = batch["labels"], models["student"]
        features = student.features(batch["images"])
        hard = cross_entropy(student.classify(features), labels, extras)
        away = prototype_distance(features, labels, extras["rows"], extras["present"], self.options.distance)
        return Loss(hard + self.options.lambda_proto * away, {"ce": hard, "prototype_distance": away})

    def evaluated(self, server: State) -> Mapping[str, Evaluable]:
        """Every client's own model: with its last layer, and by the nearest of the server's prototypes."""
        if server.prototypes is None:
            return {"personal": PERSONAL}
        layer = nearest_layer(server.prototypes, server.num_classes)
        return {"personal": PERSONAL, NEAREST: Completing(layer, NEAREST)}


def prototype_distance(
    features: Tensor, labels: Tensor, rows: Tensor, present: Tensor, distance: Distance
) -> Tensor:
    """L_R: how far a batch's features are from the prototypes of their classes; scalar.

    Args:
        features: [batch, length]; gradient reaches them only.
        labels: [batch] int64.
        rows: [C, length], a prototype a class; read only where there is one.
        present: [C] bool, whether there is one. Samples of other classes add 0, and count in the mean.
        distance: `mse`: mean over batch and length. `l2sq`: squared Euclidean distance, mean over the batch.
            `l2`: Euclidean distance of the batch's mean feature of a class, summed over its classes.
    """
    if distance == "l2":
        members = (labels[:, None] == torch.arange(len(rows), device=labels.device)) & present
        sizes = members.sum(0)
        means = members.to(features.dtype).T @ features / sizes.clamp(min=1)[:, None]
        # The square root has an infinite slope at 0.
        lengths = (means - rows).square().sum(1).clamp(min=1e-12).sqrt()
        return torch.where(sizes > 0, lengths, 0.0).sum()
    away = torch.where(present[labels][:, None], features - rows[labels], 0.0).square()
    return away.mean() if distance == "mse" else away.sum(1).mean()


def nearest_layer(prototypes: PerClass, num_classes: int) -> Tensor:
    """The linear layer whose largest output is the class of the nearest prototype.

    -||h - P_c||^2 = 2 P_c h - ||P_c||^2 - ||h||^2, whose last term is the same for all classes.

    Args:
        num_classes: C.
    Returns: [C (length + 1)], weights 2 P_c and biases -||P_c||^2; of a class without a prototype minus
        infinity, so that it is never predicted.
    """
    rows, present = spread(prototypes.classes, prototypes.values, num_classes)
    biases = torch.where(present, -rows.square().sum(1), -torch.inf)
    return torch.cat([2 * rows.flatten(), biases])
