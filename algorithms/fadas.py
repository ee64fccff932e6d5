"""FADAS: FedAvg's server, synchronous or not, takes AMSGrad steps, shorter ones where changes come late.

Wang, Wang, Lu, Chen, FADAS, ICML 2024, arXiv 2407.18365; released code yujiaw98/FADAS.

    client   FedAvg's
    server   Delta = the mean of w_i - w_sent, by the schedule's rule; t = 1, 2, ... counts its updates
             m <- b1 m + (1 - b1) Delta,   v <- b2 v + (1 - b2) Delta^2,   u <- max(u, v)
             w <- w + eta / (1 - b1^t) m / (sqrt(u / (1 - b2^t)) + eps)
             eta is divided by the largest delay d of the update's replies if d > tau_c
    down     the model w                                  4 P bytes a client
    up       the trained model w_i and the count n_i      4 P bytes a client

Made for the schedule `buffered` with normalisation `count`. Readings: eta is the method's, and `server_lr` of
the schedule stays 1; the code's corrections by t, which a second account of the paper lacks, and its eta / d,
where that has min(eta, 1 / d); moments act on parameters, and buffers are averaged. In the code a client that
starts late trains from an older model than its change is taken from; here from the model that it was sent.
With a codec down that has a loss, a fresh change is taken from the server's own w, not from what was decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import Replies, ServerContext
from rayfed_kd.toolbox.averaging import Averages, AveragingOptions, SharedModel, new_model


class Options(AveragingOptions):
    """FADAS' options; the defaults are those of the released code's delay-adaptive form."""

    eta: float = Field(0.001, gt=0, description="server's learning rate; without tau_c the code has 0.0001")
    beta1: float = Field(0.9, ge=0, lt=1, description="of the mean change, b1")
    beta2: float = Field(0.99, ge=0, lt=1, description="of its square, b2")
    eps: float = Field(1e-8, gt=0, description="beside the square root")
    tau_c: int | None = Field(1, ge=1, description="a larger delay d divides eta by d; null: none does")


@dataclass(frozen=True)
class ServerState:
    """The global model and its moments.

    Attributes:
        weights: [P], w.
        first, second, largest: [parameters of the model], m, v, u; the rest of the vector are buffers.
        updates: t, from 0.
    """

    weights: Tensor
    first: Tensor
    second: Tensor
    largest: Tensor
    updates: int = 0


class FADAS(Averages, SharedModel[ServerState, None], plain_training=True):
    """Adaptive asynchronous federated optimisation."""

    options: Options
    summary = "the server takes AMSGrad steps on the mean change, shorter ones where a change comes late"
    paper = "Wang et al. 2024, arXiv 2407.18365"
    server_keeps = "the global model and its moments"

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0, and moments of 0."""
        weights = ctx.initial_vector()
        zeros = torch.zeros(ctx.model(weights).num_parameters)
        return ServerState(weights, zeros, zeros.clone(), zeros.clone())

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Take one AMSGrad step along the mean change; buffers take the plain mean."""
        options, parameters, updates = self.options, len(server.first), server.updates + 1
        mean, old = new_model(replies, options, server.weights), server.weights[:parameters]
        change, delay = mean[:parameters] - old, max((reply.staleness for reply in replies), default=0)
        first = options.beta1 * server.first + (1 - options.beta1) * change
        second = options.beta2 * server.second + (1 - options.beta2) * change.square()
        largest = torch.maximum(server.largest, second)
        root = (largest / (1 - options.beta2**updates)).sqrt() + options.eps
        eta = rate(options, delay) / (1 - options.beta1**updates)
        weights = torch.cat([old + eta * first / root, mean[parameters:]])
        return ServerState(weights, first, second, largest, updates)


def rate(options: Options, delay: int) -> float:
    """eta for an update whose largest delay is `delay`."""
    return options.eta if options.tau_c is None or delay <= options.tau_c else options.eta / delay
