"""FedTGP: FedProto whose server trains the prototypes, so that classes lie apart from one another.

Zhang, Liu, Hua, Cao 2024, FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning, AAAI, arXiv 2401.03230, Algorithm 1.

    P^_c     F(v_c), F = Linear(K_f, K_f), ReLU, Linear(K_f, K_f), v_c a trainable vector of length K_f
    Q_c      plain mean of the p_{k,c} that came
    delta    min(largest ||Q_c - Q_c'||, tau)                                                        eq. 9
    server   S epochs of SGD on v and F over the p_{k,c}: cross entropy of the logits -||p - P^_j||,
             for j = c less delta, to the class c                                                    eq. 8
    client   as FedProto's, with P^_c in the place of P_c                                            eq. 11
    up       p_{k,c} and c of each of its C_k classes       4 C_k (K_f + 1) bytes a client
    down     P^_c and c of all C classes                    4 C (K_f + 1) bytes a client

Readings: of less than two classes delta is 0; an update takes what came in it; the mean over a batch of
`server_batch_size` (eq. 5 sums); order and batches from the run's seed. `gap: nearest` is the released code's
delta, of each class's nearest neighbour. The paper's lambda is 0.1, the released script's 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import OptimizerRecipe, Replies, Reply, ServerContext, Unaligned
from rayfed_kd.toolbox.by_class.means import PerClass
from rayfed_kd.toolbox.by_class.prototypes import PrototypeClients, PrototypeOptions
from rayfed_kd.toolbox.layers import feature_length
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer


class Options(PrototypeOptions):
    """FedTGP's options; the defaults are the paper's."""

    lambda_proto: float = Field(0.1, ge=0, description="weight of the distance from the prototypes, lambda")
    tau: float = Field(100.0, ge=0, description="largest margin delta")
    gap: Literal["pairs", "nearest"] = Field(
        "pairs", description="delta: largest distance of two classes, or of a class from its nearest"
    )
    server_epochs: int = Field(100, ge=0, description="passes over the round's prototypes at the server, S")
    server_batch_size: int = Field(10, ge=1, description="prototypes a step there")
    server_optimizer: OptimizerRecipe | None = Field(None, description="null: as local.optimizer")


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        trained: [C K_f + 2 K_f (K_f + 1)], the v_c and F's two layers, weights before biases.
        prototypes: P^_c of all classes; None before the first update.
        num_classes: C.
    """

    trained: Tensor
    prototypes: PerClass | None
    num_classes: int


class FedTGP(PrototypeClients[ServerState], plain_training=True):
    """Trainable global prototypes."""

    options: Options
    summary = "FedProto whose server trains the prototypes with a margin between classes"
    paper = "Zhang et al. 2024, arXiv 2401.03230"
    server_keeps = "the prototypes, and the vectors and layers that make them"
    up = {"prototypes": Unaligned("prototypes"), "classes": "labels"}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """v_c of standard normal numbers, F as torch draws linear layers; the first round has no P^_c."""
        length = feature_length(ctx.frozen_model(ctx.initial_vector()), ctx)
        stream, device = ctx.stream("prototypes"), ctx.device
        vectors = torch.randn(ctx.classes * length, generator=stream, device=device)
        layers = torch.rand(2 * length * (length + 1), generator=stream, device=device) * 2 - 1
        return ServerState(torch.cat([vectors, layers / length**0.5]).cpu(), None, ctx.classes)

    def uploaded(self, prototypes: PerClass) -> Reply:
        """Prototypes and classes; counts do not travel."""
        return Reply(prototypes=prototypes.values, classes=prototypes.classes)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Train v and F on the prototypes that came; P^_c of all classes."""
        if not len(replies):
            return server
        sent, classes = (torch.cat(list(replies.vectors(name))) for name in ("prototypes", "classes"))
        sent, labels = sent.to(ctx.device), classes.long().to(ctx.device)
        sizes = ctx.classes, sent.shape[1]
        margin = min(class_gap(sent, labels, self.options.gap), self.options.tau)
        trained = FreeTensor(server.trained.to(ctx.device))
        optimizer = Optimizer(self.options.server_optimizer or ctx.local.optimizer, trained)
        for _ in range(self.options.server_epochs):
            order = torch.randperm(len(labels), generator=ctx.stream("order"), device=ctx.device)
            for batch in ctx.in_batches(order, self.options.server_batch_size):
                prototypes = made_prototypes(trained.value, *sizes)
                loss = margin_loss(sent[batch], labels[batch], prototypes, margin)
                ctx.log(margin_ce=loss)
                optimizer.minimise(loss)
        flat = trained.trainable.clone()
        every, prototypes = torch.arange(ctx.classes, dtype=torch.int32), made_prototypes(flat, *sizes).cpu()
        return ServerState(flat.cpu(), PerClass(every, prototypes, torch.ones(ctx.classes)), ctx.classes)


def made_prototypes(trained: Tensor, num_classes: int, length: int) -> Tensor:
    """P^_c = F(v_c), [C, K_f], from the vector of a server's state; gradient passes. `length` is K_f."""
    square = length * length
    v, w, b, u, a = torch.split(trained, [num_classes * length, square, length, square, length])
    hidden = F.relu(F.linear(v.view(num_classes, length), w.view(length, length), b))
    return F.linear(hidden, u.view(length, length), a)


def class_gap(sent: Tensor, labels: Tensor, gap: Literal["pairs", "nearest"]) -> float:
    """The largest distance of two classes' plain means Q_c, or of a class from its nearest; 0 for one class.

    Args:
        sent: [n, K_f], the prototypes p_{k,c}.
        labels: [n] int64, their classes.
    """
    means = torch.stack([sent[labels == label].mean(0) for label in torch.unique(labels)])
    if len(means) < 2:
        return 0.0
    apart = (means[:, None] - means).square().sum(2).sqrt()
    seen = apart if gap == "pairs" else apart.fill_diagonal_(torch.inf).min(1).values
    return float(seen.max())


def margin_loss(sent: Tensor, labels: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Eq. 8: cross entropy of -||p - P^_j||, less the margin for the own class; mean over the batch.

    Args:
        sent: [batch, K_f]; labels: [batch] int64; prototypes: [C, K_f], where gradient goes.
    """
    # The square root has an infinite slope at 0.
    distances = (sent[:, None] - prototypes).square().sum(2).clamp(min=1e-12).sqrt()
    return F.cross_entropy(-distances - margin * F.one_hot(labels, len(prototypes)), labels)
