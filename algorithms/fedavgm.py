"""FedAvgM: FedAvg whose server has momentum.

Hsu, Qi, Brown 2019, arXiv 1909.06335.

    client   FedAvg's
    server   D = w^t - sum over the cohort of p_k w_k,  v^0 = 0
             plain      v <- beta v + D,                w^{t+1} = w^t - eta_s v
             nesterov   v <- beta v + D,                w^{t+1} = w^t - eta_s (D + beta v)
             damped     v <- beta v + (1 - beta) D,     w^{t+1} = w^t - eta_s v
    down     the model w^t                                4 P bytes a client
    up       the trained model w_k and the count n_k      4 P bytes a client

Three methods carry the name, so `form` says which: plain as in most frameworks, nesterov as the paper's own
experiments by a later account, damped as in the released code of MOON, FedDisco and KDIA. Reading: momentum
acts on parameters; buffers are plainly averaged. beta = 0 with eta_s = 1 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import Replies, ServerContext
from rayfed_kd.toolbox.averaging import Averages, AveragingOptions, SharedModel, new_model


class Options(AveragingOptions):
    """FedAvgM's options."""

    form: Literal["plain", "nesterov", "damped"] = Field("plain", description="which of the three methods")
    beta: float = Field(0.9, ge=0, lt=1, description="momentum")
    server_lr: float = Field(1.0, gt=0, description="server's learning rate, eta_s")


@dataclass(frozen=True)
class ServerState:
    """The global model and its velocity.

    Attributes:
        weights: [P], w^t.
        velocity: [parameters of the model], v; the rest of the vector are buffers.
    """

    weights: Tensor
    velocity: Tensor


class FedAvgM(Averages, SharedModel[ServerState, None], plain_training=True):
    """Federated averaging with server momentum."""

    options: Options
    summary = "federated averaging with momentum at the server: plain, Nesterov's or damped"
    paper = "Hsu et al. 2019, arXiv 1909.06335"
    server_keeps = "the global model and its velocity"

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0, and v^0 = 0 for the parameters; buffers have no velocity."""
        weights = ctx.initial_vector()
        return ServerState(weights, torch.zeros(ctx.model(weights).num_parameters))

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Step along v, which D = w^t - mean has updated by `form`; buffers take the plain mean."""
        options, parameters = self.options, len(server.velocity)
        mean = new_model(replies, options, server.weights)
        old, buffers = server.weights[:parameters], mean[parameters:]
        change = old - mean[:parameters]
        share = 1 - options.beta if options.form == "damped" else 1.0
        velocity = options.beta * server.velocity + share * change
        step = change + options.beta * velocity if options.form == "nesterov" else velocity
        return ServerState(torch.cat([old - options.server_lr * step, buffers]), velocity)
