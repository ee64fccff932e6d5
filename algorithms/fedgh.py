"""FedGH: clients of any architecture send mean features of their classes; the server trains a head on them.

Yi, Wang, Liu, Shi, Yu 2023, FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM
Multimedia, arXiv 2303.13137.

    client  puts the received head on its own body, trains both by cross entropy, then computes
            p_{k,c}, the mean feature of its samples of class c
    server  from its own head, steps of SGD on CE(head(p_{k,c}), c) over all that came
    down    the head                                        4 (K_f + 1) C bytes a client
    up      p_{k,c} and c of each of its C_k classes        4 C_k (K_f + 1) bytes a client

The head is the last linear layer; features are of one length. A client keeps its model. Readings: prototypes
are means over samples, in eval mode after training (the released code takes means of batches' means); the
server's pass takes one pair a step, in the order of clients and classes, with an optimiser that starts afresh
(in the released scripts the head is in no optimiser and stays as it began). Both heads are evaluated: the
client's own after its training, and the server's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Architecture,
    ClientContext,
    Completing,
    Evaluable,
    FlatModule,
    Message,
    MethodOptions,
    OneExchange,
    OptimizerRecipe,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import mean_features
from rayfed_kd.toolbox.layers import check_equal_features, head_place
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import OwnModels

HEAD = "head"


class Options(MethodOptions):
    """FedGH's options; the clients' epochs and optimiser are the recipe's."""

    server_epochs: int = Field(1, ge=0, description="passes over the round's prototypes at the server")
    server_batch_size: int = Field(1, ge=1, description="prototypes a step there")
    server_optimizer: OptimizerRecipe | None = Field(None, description="null: as local.optimizer")


class FedGH(OwnModels, OneExchange[Tensor, Tensor], plain_training=True):
    """A generalised global head: the server's state is the head, a client's its whole model."""

    options: Options
    summary = "a head that the server trains on clients' mean features, on bodies of any architecture"
    paper = "Yi et al. 2023, arXiv 2303.13137"
    server_keeps = "the head"
    down = {"head": "weights"}
    up = {"prototypes": Unaligned("prototypes"), "classes": "labels"}
    heterogeneous = True
    evaluates = ("personal", "global_head")

    def architectures(self) -> Mapping[str, Architecture]:
        """The head: features to logits."""
        return {HEAD: Architecture("head", "linear", {}, space="features")}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless all models end in a linear layer, with features of one length."""
        check_equal_features(ctx)
        for name in ctx.client_architectures:
            head_place(ctx.frozen_model(ctx.initial_vector(name), name))

    def init_server(self, ctx: ServerContext) -> Tensor:
        """The initial model's head, [C (K_f + 1)]."""
        initial = ctx.initial_vector()
        return initial[head_place(ctx.frozen_model(initial))].clone()

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send the head."""
        return Message(head=server)

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's body under the received head, and the head with it; send prototypes."""
        student = ctx.model(client)
        begun = client.clone()
        begun[head_place(student)] = message["head"]
        student.load(begun)
        train_on_labels(student, ctx)
        vector = student.vector()
        prototypes = mean_features(ctx.frozen_model(vector), ctx)
        return vector, Reply(prototypes=prototypes.values, classes=prototypes.classes)

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Train the head on all prototypes that came."""
        if not len(replies):
            return server
        prototypes, classes = (torch.cat(list(replies.vectors(name))) for name in ("prototypes", "classes"))
        head = ctx.model(server, HEAD)
        optimizer = Optimizer(self.options.server_optimizer or ctx.local.optimizer, head)
        pairs = prototypes.to(ctx.device), classes.long().to(ctx.device)
        for loss in head_losses(head, *pairs, self.options.server_epochs, self.options.server_batch_size):
            ctx.log(head_ce=loss)
            optimizer.minimise(loss)
        return head.vector().cpu()

    def evaluated(self, server: Tensor) -> Mapping[str, Evaluable]:
        """Every client's own model, with its own head after training, and with the server's."""
        return {"personal": PERSONAL, "global_head": Completing(server, HEAD)}


def head_losses(
    head: FlatModule, prototypes: Tensor, classes: Tensor, epochs: int, batch_size: int
) -> Iterator[Tensor]:
    """CE(head(p), c) of one batch of pairs after another, in their order; the caller steps on each.

    Args:
        head: features to logits.
        prototypes: [n, K_f].
        classes: [n] int64.
        epochs: passes over all n.
        batch_size: pairs in a loss.
    """
    for _ in range(epochs):
        for rows, labels in zip(
            torch.split(prototypes, batch_size), torch.split(classes, batch_size), strict=True
        ):
            yield cross_entropy(head(rows), labels)
