"""MOON: a client's features are drawn to the received model's, and away from its own last model's.

Li, He, Song 2021, arXiv 2103.16257, Algorithm 1.

    z, z_g, z_p   features of an image under w, the received w^t and the client's last local model
    l_con         -log( e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + e^(cos(z, z_p) / tau)) )
    L             CE + mu mean l_con
    server        FedAvg's, the projection head included
    down          the model w^t                                4 P bytes a client
    up            the trained model w_k and the count n_k      4 P bytes a client

A client keeps its last `buffer` local models. Readings: gradient enters through z only, the other models are
frozen and in eval mode; a client without a past trains on cross entropy alone; features are the input of the
last layer, which is the projection head's output where the model has one, as `simple_cnn` has. mu = 0 is
FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import Classifier, ClientContext, Message, RecipeError, Reply, ServerContext
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.local_training import train_local_epochs
from rayfed_kd.toolbox.losses import contrastive_loss, cross_entropy


class Options(AveragingOptions):
    """MOON's options; the defaults are the paper's for CIFAR-10."""

    mu: float = Field(5.0, ge=0, description="weight of the contrastive term")
    tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")
    buffer: int = Field(1, ge=1, description="how many of its last models a client is pushed away from")


@dataclass(frozen=True)
class ClientState:
    """What a client keeps.

    Attributes:
        previous: its last local models, [P] each, the latest first.
    """

    previous: tuple[Tensor, ...]


class MOON(Averaging[ClientState]):
    """Model-contrastive federated learning."""

    options: Options
    summary = "contrastive term between features of the local, the received and the client's last model"
    paper = "Li, He, Song 2021, arXiv 2103.16257"
    client_keeps = "its last local models (buffer)"

    def check(self, ctx: ServerContext) -> None:
        module = ctx.model(ctx.initial_vector()).module
        if not isinstance(module, Classifier):
            raise RecipeError(
                f"moon compares features, and a {type(module).__name__} names none; expected a "
                "rayfed_kd.models.base.Classifier",
                path="model.name",
            )

    def client_update(
        self, client: ClientState | None, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        previous = () if client is None else client.previous
        student = ctx.model(message["student"])
        received = ctx.frozen_model(message["student"])
        earlier = [ctx.frozen_model(vector) for vector in previous]

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = student.features(images)
            hard = cross_entropy(student.classify(features), labels)
            ctx.log(ce=hard)
            if not (self.options.mu and earlier):
                return hard
            with torch.no_grad():
                positive = received.features(images)
                negatives = torch.stack([model.features(images) for model in earlier])
            contrast = contrastive_loss(features, positive, negatives, self.options.tau)
            ctx.log(contrast=contrast)
            return hard + self.options.mu * contrast

        train_local_epochs(student, loss, ctx)
        trained = student.vector()
        state = ClientState((trained, *previous)[: self.options.buffer])
        return state, Reply(student=trained, samples=ctx.num_samples)
