"""q-FFL, solved by q-FedAvg: clients that do worse count for more.

Li, Sanjabi, Beirami, Smith 2020, arXiv 1905.10497, Algorithm 2.

    F_k       mean loss of w^t over the client's training samples, before it trains
    dw_k      L (w^t - wbar_k), L = 1 / eta, wbar_k after E epochs
    Delta_k   F_k^q dw_k
    h_k       q F_k^(q-1) ||dw_k||^2 + L F_k^q
    w^{t+1}   w^t - sum over the cohort of Delta_k / sum over the cohort of h_k
    down      the model w^t                            4 P bytes a client
    up        Delta_k and h_k                          4 (P + 1) bytes a client

Readings: F_k in eval mode, plus 1e-10 as released; eta is the recipe's learning rate, whatever the optimiser
does with it; sums and norms in float64; the norm is over parameters, while buffers take the same step, which
is a mean of old and new ones; cohorts are drawn as for every method. q = 0 is FedAvg with uniform weights.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    ClientContext,
    Message,
    MethodOptions,
    Replies,
    Reply,
    ServerContext,
    weighted_sum,
)
from rayfed_kd.toolbox.averaging import GlobalModel, SharedModel
from rayfed_kd.toolbox.local_training import mean_loss, train_on_labels

# Added to F_k, as released: at F_k = 0 the power q - 1 would be infinite for q below 1.
SMALLEST_LOSS = 1e-10


class Options(MethodOptions):
    """q-FFL's options."""

    q: float = Field(1.0, ge=0, description="how much more a client with a higher loss counts; 0: no more")


class QFFL(SharedModel[GlobalModel, None]):
    """q-fair federated learning."""

    options: Options
    summary = "fair resource allocation: updates weighed by a power of the clients' losses"
    paper = "Li, Sanjabi, Beirami, Smith 2020, arXiv 1905.10497"
    group_training = "all local training"
    up = {"delta": "weights", "curvature": "scalars"}

    def init_server(self, ctx: ServerContext) -> GlobalModel:
        """w^0."""
        return GlobalModel(ctx.initial_vector())

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Measure F_k of w^t, train E epochs, send Delta_k, [P], and h_k."""
        received = message["student"]
        loss = mean_loss(ctx.frozen_model(received), ctx)
        ctx.log(loss_before=loss)
        student = ctx.model(received)
        train_on_labels(student, ctx)
        lipschitz = 1 / ctx.local.optimizer.lr
        change = lipschitz * (received.double() - student.vector().double())
        delta, curvature = fair_update(change, student.num_parameters, loss, lipschitz, self.options.q)
        return None, Reply(delta=delta, curvature=curvature)

    def absorb(self, server: GlobalModel, replies: Replies, ctx: ServerContext) -> GlobalModel:
        """w^{t+1} = w^t - sum Delta_k / sum h_k, in float64; buffers take the same step."""
        ones = [1.0] * len(replies)
        change = weighted_sum(replies.vectors("delta"), ones)
        curvature = weighted_sum(replies.vectors("curvature"), ones)
        weights = server.weights.to(torch.float64) - change / curvature
        return GlobalModel(weights.to(torch.float32), server.version + 1)


def fair_update(
    change: Tensor, num_parameters: int, loss: float, lipschitz: float, q: float
) -> tuple[Tensor, Tensor]:
    """Delta_k, [P], and h_k, scalar, float32 both, from dw_k, [P] float64, and F_k."""
    positive = loss + SMALLEST_LOSS
    norm = change[:num_parameters].square().sum()
    curvature = q * positive ** (q - 1) * norm + lipschitz * positive**q
    return (positive**q * change).to(torch.float32), curvature.to(torch.float32)
