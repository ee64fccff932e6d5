"""Centralized: one model on all private data, the reference that needs no federation.

Cheng et al. 2021 (FedGEMS), arXiv 2110.11027, "Centralized". One client holds all data: a round is its E
epochs of cross entropy, and the optimiser goes on from round to round (`reset_optimizer` starts it afresh,
which is FedAvg with one client). Nothing travels; that the model reaches who evaluates it is counted as
simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    ClientContext,
    Message,
    MethodOptions,
    OneExchange,
    RecipeError,
    Replies,
    Reply,
    ServerContext,
    Simulated,
)
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.optimizers import Optimizer


class Options(MethodOptions):
    """Centralized training's options."""

    reset_optimizer: bool = Field(False, description="start the optimiser afresh in every round")


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        weights: [P].
        moments: the optimiser's; empty: afresh.
    """

    weights: Tensor
    moments: Mapping[str, Tensor]


class Centralized(OneExchange[Tensor, Model]):
    """The server's state is a copy of the model, to be evaluated."""

    options: Options
    summary = "one model trained on all private data together"
    paper = "Cheng et al. 2021, arXiv 2110.11027 (Centralized)"
    label_options = True
    server_keeps = "the model"
    client_keeps = "the model and its optimiser"
    up = {"model": Simulated("weights")}
    evaluates = ("global",)

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless one client holds all data."""
        if ctx.num_clients != 1:
            raise RecipeError(f"partition.clients = {ctx.num_clients}: centralized trains on one, 1")

    def init_server(self, ctx: ServerContext) -> Tensor:
        """The initial model, [P], which is replaced after the first round."""
        return ctx.initial_vector()

    def init_client(self, ctx: ClientContext) -> Model:
        """The initial model, [P], whose optimiser has no moments yet."""
        return Model(ctx.initial_vector(), {})

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send nothing: the model and its optimiser stay at the client."""
        return Message()

    def client_update(self, client: Model, message: Message, ctx: ClientContext) -> tuple[Model, Reply]:
        """Train E epochs from the client's own model; the optimiser goes on unless `reset_optimizer`."""
        model = ctx.model(client.weights)
        moments = {} if self.options.reset_optimizer else client.moments
        optimizer = Optimizer(ctx.local.optimizer, model, moments)
        train_on_labels(model, ctx, optimizer=optimizer)
        return Model(model.vector(), optimizer.state()), Reply(model=model.vector())

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Take the one client's model as it is, so that it can be evaluated."""
        (reply,) = replies
        model: Tensor = reply["model"]
        return model

    def evaluated(self, server: Tensor) -> Mapping[str, Tensor]:
        """The client's model after its last round, as `global`."""
        return {"global": server}
