"""FedProto: clients of any architecture exchange the mean features of their classes, and nothing else.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang 2022, FedProto: Federated Prototype Learning across Heterogeneous
Clients, AAAI, arXiv 2105.00243, Algorithm 1.

    p_{k,c}  mean feature of client k's samples of class c                             eq. 3
    P_c      sum over the clients that have c of (n_{k,c} / N_c) p_{k,c}               eq. 6
    L        CE + lambda sum_c d(p_{k,c}, P_c)                                         eq. 7
    up       p_{k,c}, c and n_{k,c} of each of its C_k classes    4 C_k (K_f + 2) bytes a client
    down     P_c and c of each class that has one                 4 C (K_f + 1) bytes a client, or less

A client keeps its model; one prediction is arg min_c ||h - P_c||. Readings: prototypes are computed after
training, in eval mode; P_c is over the latest p_{k,c} of all clients that took part so far (`over: cohort`:
over the round's), and the factor 1 / |N_c| that eq. 6 has on top of its weights is left out (`pooling:
literal` has it; the released code's mean is `uniform`); d is the released code's mean squared error, sample
by sample, for which its lambda was found. A class without P_c has no term. lambda = 0 trains as Stand-Alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from rayfed_kd.protocol import Replies, ServerContext
from rayfed_kd.toolbox.by_class.means import PerClass, Pooling, pooled
from rayfed_kd.toolbox.by_class.prototypes import PrototypeClients, PrototypeOptions


class Options(PrototypeOptions):
    """FedProto's options."""

    pooling: Pooling = Field(
        "count", description="clients' weights in P_c; literal: by counts, then divided by their number"
    )
    over: Literal["clients", "cohort"] = Field(
        "clients", description="P_c is over the latest of all clients, or over the cohort's"
    )


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        latest: client -> its last p_{k,c}; with `over: cohort` only those of the last cohort.
        prototypes: P_c; None before the first update.
        num_classes: C.
    """

    latest: Mapping[int, PerClass]
    prototypes: PerClass | None
    num_classes: int


class FedProto(PrototypeClients[ServerState], plain_training=True):
    """Federated prototype learning."""

    options: Options
    summary = "clients of any architecture exchange mean features of their classes, and are drawn to them"
    paper = "Tan et al. 2022, arXiv 2105.00243"
    server_keeps = "all clients' latest prototypes, and their means"

    def init_server(self, ctx: ServerContext) -> ServerState:
        """No prototypes: the first round has no term."""
        return ServerState({}, None, ctx.classes)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """P_c from all clients' latest p_{k,c}, or from the cohort's."""
        arrived = {
            reply.client: PerClass(reply["classes"], reply["prototypes"], reply["counts"])
            for reply in replies
        }
        latest = {**server.latest, **arrived} if self.options.over == "clients" else arrived
        if not latest:
            return server
        # In the order of clients, whatever the order in which they came: sums round by their order.
        prototypes = pooled([latest[client] for client in sorted(latest)], ctx.classes, self.options.pooling)
        return ServerState(latest, prototypes, ctx.classes)
