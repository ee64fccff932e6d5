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

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, Message, Reply, ServerContext
from rayfed_kd.toolbox.averaging import Averaging, AveragingOptions
from rayfed_kd.toolbox.layers import check_features
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches
from rayfed_kd.toolbox.losses import contrastive_loss, cross_entropy

PREVIOUS = "previous "


class Options(AveragingOptions):
    """MOON's options; the defaults are the paper's for CIFAR-10."""

    mu: float = Field(5.0, ge=0, description="weight of the contrastive term")
    tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")
    buffer: int = Field(1, ge=1, description="how many of its last models a client is pushed away from")


class MOON(Averaging[tuple[Tensor, ...]], plain_training=True):
    """Model-contrastive federated learning. A client's state are its last local models, the latest first."""

    options: Options
    summary = "contrastive term between features of the local, the received and the client's last model"
    paper = "Li, He, Song 2021, arXiv 2103.16257"
    client_keeps = "its last local models (buffer)"

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if the features z of the model are not known."""
        check_features(ctx)

    def init_client(self, ctx: ClientContext) -> tuple[Tensor, ...]:
        """No past: the first participation has no z_p."""
        return ()

    def client_update(
        self, client: tuple[Tensor, ...], message: Message, ctx: ClientContext
    ) -> tuple[tuple[Tensor, ...], Reply]:
        """Train from w^t on L; the trained model joins the at most `buffer` that give z_p next time."""
        student = ctx.model(message["student"])
        models = {"student": student, "received": ctx.frozen_model(message["student"])}
        for age, vector in enumerate(client):
            models[f"{PREVIOUS}{age}"] = ctx.frozen_model(vector)
        train_batches(models, self.loss, ctx)
        trained = student.vector()
        state = (trained, *client)[: self.options.buffer]
        return state, Reply(student=trained, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L, the contrast where the client has a past."""
        student, images = models["student"], batch["images"]
        features = student.features(images)
        hard = cross_entropy(student.classify(features), batch["labels"], extras)
        earlier = [model for name, model in models.items() if name.startswith(PREVIOUS)]
        if not (self.options.mu and earlier):
            return Loss(hard, {"ce": hard})
        with torch.no_grad():
            positive = models["received"].features(images)
            negatives = torch.stack([model.features(images) for model in earlier])
        contrast = contrastive_loss(features, positive, negatives, self.options.tau)
        return Loss(hard + self.options.mu * contrast, {"ce": hard, "contrast": contrast})
