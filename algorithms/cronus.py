"""Cronus: clients of any architecture learn from a robust mean of their predictions on a public set.

Chang, Shejwalkar, Shokri, Houmansadr 2019, arXiv 1912.11279; the robust mean is the filter of Diakonikolas
et al. 2017, arXiv 1703.00893.

    once      every client trains on its own data
    round     Y_k(x) = softmax(f_k(x))                                on N0 public samples
              Y(x) = robust mean over the cohort of Y_k(x)            each sample apart
              client: -sum_c Y_c log softmax(f_k)_c on these samples, then cross entropy on its own data
    filter    while the top eigenvalue of the cohort's covariance (1 / m) is above 9 sigma^2, those go that
              lie, along its eigenvector, Z times the largest distance from the mean away or farther;
              Z with density 2 z on [0, 1]

    up    probabilities Y_k    4 N0 C bytes a client
    down  the mean Y           4 N0 C bytes a client

The server keeps nothing. Readings: a bound of 9, for unit second moments, can never be passed by probability
vectors, whose covariance has no eigenvalue above 1/2: sigma^2 is a setting; half of the cohort always stays;
no probability vector is refused for having left the simplex, the filter is what answers that; the optimiser
starts afresh in each round and goes on from public to own data. Without public epochs nothing travels,
nothing needs an initialisation, and clients are stand-alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, Cohort, Message, Method, Replies, Reply, ServerContext
from rayfed_kd.toolbox.local_training import public_logits, train_on_labels
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import OwnModels
from rayfed_kd.toolbox.public_data import PublicOptions, drawn_seed, soft_label_loss, train_on_public
from rayfed_kd.toolbox.robust import linear_density, spectral_filter

BOUND = 9.0  # of the eigenvalue, for points of unit second moments


class Options(PublicOptions):
    """Cronus' options; E of the recipe's `local` are a round's epochs on the client's own data."""

    sigma2: float = Field(
        0.01, gt=0, description="sigma^2; from 1/18 on no probabilities are cut; .inf: the plain mean"
    )
    public_epochs: int = Field(1, ge=0, description="passes over the public samples; 0: stand-alone")
    start_epochs: int = Field(1, ge=0, description="first epochs on the client's own data")


@dataclass(frozen=True)
class ClientState:
    """A client's model, [P_k], and whether it was trained for a first time."""

    model: Tensor
    started: bool


class Cronus(OwnModels, Method[None, ClientState], plain_training=True):
    """Robust knowledge transfer between black boxes."""

    options: Options
    summary = "clients of any architecture learn from a robust mean of their predictions on a public set"
    paper = "Chang et al. 2019, arXiv 1912.11279"
    down = {"labels": "logits"}
    up = {"probabilities": "logits"}
    server_keeps = "nothing"
    heterogeneous = True
    public = "samples"

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if `public_samples` is more than the public set has."""
        self.options.check_public(ctx)

    def init_server(self, ctx: ServerContext) -> None:
        return None

    def init_client(self, ctx: ClientContext) -> ClientState:
        """The initial model, [P_k]; `start_epochs` are still to come, before the first prediction."""
        return ClientState(ctx.initial_vector(), started=False)

    def run_round(self, server: None, cohort: Cohort, ctx: ServerContext) -> None:
        """Predictions up, their robust mean down."""
        if not self.options.public_epochs:
            cohort.broadcast(self.update, Message())
            return
        seed = drawn_seed(ctx)
        replies = cohort.broadcast(self.predict, Message(seed=seed))
        cohort.broadcast(self.update, Message(labels=self.agreed(replies, ctx), seed=seed))

    def predict(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """Y_k: [N0, C]; a client that is new trains on its own data before."""
        if not client.started:
            student = ctx.model(client.model)
            train_on_labels(student, ctx, range(self.options.start_epochs))
            client = ClientState(student.vector(), started=True)
        ids = self.options.ids(message["seed"], ctx)
        logits = public_logits(ctx.frozen_model(client.model), ctx, ids)
        return client, Reply(probabilities=logits.softmax(dim=1))

    def agreed(self, replies: Replies, ctx: ServerContext) -> Tensor:
        """Y: [N0, C], the robust mean."""
        points = torch.stack(list(replies.vectors("probabilities"))).to(ctx.device)
        draw = linear_density(ctx.stream("filter"))
        return spectral_filter(points, BOUND * self.options.sigma2, draw).cpu()

    def update(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """The public samples with their labels, then the client's own data."""
        student = ctx.model(client.model)
        optimizer = Optimizer(ctx.local.optimizer, student)
        if self.options.public_epochs:
            train_on_public(
                student,
                soft_label_loss,
                ctx,
                epochs=self.options.public_epochs,
                optimizer=optimizer,
                ids=self.options.ids(message["seed"], ctx),
                said=message["labels"],
            )
        train_on_labels(student, ctx, optimizer=optimizer)
        return ClientState(student.vector(), client.started), Reply()
