"""FedDisco: a client counts for less the further its classes are from uniform.

Ye, Xu, Wang, Xu, Chen, Wang 2023, arXiv 2305.19229.

    d_k       discrepancy between the client's class frequencies D_k and uniform ones
    p_k       ReLU(n_k / n - a d_k + b), divided by their sum over the cohort; n = sum over the cohort of n_k
    w^{t+1}   sum over the cohort of p_k w_k
    client    FedAvg's
    down      the model w^t                              4 P bytes a client
    up        the trained model w_k, the count n_k       4 P bytes a client
              and once d_k                               4 bytes

The server keeps every seen client's d_k. Readings: `metric: kl_normalised` is KL(D_k, uniform) divided by its
sum over the cohort, as the released code does for KL, and what a and b were chosen for; it makes a weight
depend on who else was drawn. Where every p_k is cut to 0 the weights are FedAvg's, logged as `all_cut`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import ClientContext, MethodOptions, Replies, ServerContext
from rayfed_kd.toolbox.averaging import TellingOnce, Told


class Options(MethodOptions):
    """FedDisco's options; the defaults are the paper's."""

    a: float = Field(0.5, ge=0, description="weight of the discrepancy")
    b: float = Field(0.1, ge=0, description="what is added to every weight before it is cut at 0")
    metric: Literal["kl_normalised", "kl", "l2"] = Field(
        "kl_normalised", description="discrepancy: KL over its sum over the cohort, KL, or Euclidean distance"
    )


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        weights: [P], w^t.
        discrepancies: client -> d_k, not normalised.
    """

    weights: Tensor
    discrepancies: Mapping[int, float]


class FedDisco(TellingOnce[ServerState], plain_training=True):
    """Discrepancy-aware collaboration."""

    options: Options
    summary = "an average that also weighs how far a client's classes are from uniform"
    paper = "Ye et al. 2023, arXiv 2305.19229"
    server_keeps = "the global model, everybody's discrepancy"
    client_keeps = "whether its discrepancy was sent"
    up = {"student": "weights", "discrepancy": "scalars"}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """w^0; no client's d_k is known."""
        return ServerState(ctx.initial_vector(), {})

    def told(self, client: Told, ctx: ClientContext) -> Mapping[str, Tensor]:
        """d_k, which goes up with the first reply alone, as class counts never change."""
        return {} if client.told else {"discrepancy": discrepancy(ctx.label_counts(), self.options.metric)}

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Average by p_k from n_k and d_k; by n_k alone where every p_k is cut to 0."""
        fresh = {reply.client: float(reply["discrepancy"]) for reply in replies if "discrepancy" in reply}
        known = {**server.discrepancies, **fresh}
        samples = replies.numbers("samples")
        shares = collaboration(samples, [known[client] for client in replies.clients], self.options)
        cut = not any(shares)
        ctx.log(all_cut=torch.tensor(float(cut)))
        mean = replies.aggregated("student", samples if cut else shares, server.weights)
        return ServerState(mean, known)


def discrepancy(counts: Tensor, metric: str) -> Tensor:
    """KL(D_k, uniform) in nats or ||D_k - uniform||, scalar float32, of label counts [C]."""
    frequencies: Tensor = counts.to(torch.float64) / counts.sum().clamp(min=1)
    if metric == "l2":
        return (frequencies - 1 / len(counts)).square().sum().sqrt().to(torch.float32)
    negative_entropy = torch.xlogy(frequencies, frequencies).sum()
    # Of uniform classes the KL is 0, and may come out a bit below by rounding.
    return (math.log(len(counts)) + negative_entropy).clamp(min=0).to(torch.float32)


def collaboration(samples: Sequence[float], discrepancies: Sequence[float], options: Options) -> list[float]:
    """ReLU(n_k / n - a d_k + b) for a cohort; not divided by their sum, which is 0 where all are cut."""
    scale = 1.0
    if options.metric == "kl_normalised":
        scale = math.fsum(discrepancies) or 1.0
    total = sum(samples)
    return [
        max(n / total - options.a * d / scale + options.b, 0.0) if n else 0.0
        for n, d in zip(samples, discrepancies, strict=True)
    ]
