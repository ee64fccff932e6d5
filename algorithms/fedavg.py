"""FedAvg: clients train, the server averages by sample counts.

McMahan et al. 2017, arXiv 1602.05629, Algorithm 1.

    down  the model w^t                                4 P bytes a client
    up    the trained model w_k and the count n_k      4 P bytes a client
    w^{t+1} = sum over the cohort of n_k w_k / sum of n_k

Readings: BatchNorm buffers are averaged with the weights; a local epoch is a pass over all of a
client's samples; `weighting: uniform` is what the released code of FedDF, FedGKD and pFedSD does.
`track_oca` also evaluates the overall average of all clients' latest models, as FedKF's Table XII
does ("FedAvg (OCA)"); it changes nothing in training. `aggregation` takes a robust mean, which is unweighted
and BatchNorm's buffers with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import Declaration, Replies, ServerContext
from rayfed_kd.toolbox.averaging import AveragingOptions, SharedModel, new_model
from rayfed_kd.toolbox.slots import Slots


class Options(AveragingOptions):
    """FedAvg's options."""

    track_oca: bool = Field(False, description="also evaluate the mean of all clients' latest models")


@dataclass(frozen=True)
class ServerState:
    """The global model, and with `track_oca` all clients' latest ones.

    Attributes:
        weights: [P], the global model.
        slots: latest vector per client, or None.
        initial: [P], what a client not seen yet counts as.
        oca: [P], overall clients' average, or None.
    """

    weights: Tensor
    slots: Slots | None
    initial: Tensor
    oca: Tensor | None


class FedAvg(SharedModel[ServerState, None], plain_training=True):
    """Federated averaging; what goes down and what clients do is in `SharedModel`."""

    options: Options
    summary = "sample-weighted average of locally trained models"
    paper = "McMahan et al. 2017, arXiv 1602.05629"
    server_keeps = "the global model; with track_oca all clients' latest"
    evaluates = ("global", "oca")

    @property
    def up(self) -> Declaration:
        """The model, averaged; with `track_oca` each client's is kept as well."""
        return {"student": "weights" if self.options.track_oca else self.options.model()}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0; with `track_oca` also empty slots, where an unseen client counts as w^0."""
        weights = ctx.initial_vector()
        if not self.options.track_oca:
            return ServerState(weights, None, weights, None)
        return ServerState(weights, Slots.empty(weights.numel()), weights, weights)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Average the cohort's w_k by n_k; with `track_oca` also update OCA over all K clients."""
        weights = new_model(replies, self.options, server.weights)
        if server.slots is None:
            return ServerState(weights, None, server.initial, None)
        slots = server.slots.after(replies, "student", replies.numbers("samples"))
        # Slots weigh n_k, so all other samples are of clients not seen yet.
        oca = slots.mean(server.initial, sum(ctx.sizes) - slots.weight)
        return ServerState(weights, slots, server.initial, oca)

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        """The global model (ACA in FedKF's paper), with `track_oca` OCA, of all clients' latest."""
        models = {"global": server.weights}
        return models if server.oca is None else {**models, "oca": server.oca}
