"""pFedSD: FedAvg whose clients distil from their own last model, which is also their personal one.

Jin et al. 2022, Personalized Edge Intelligence via Federated Self-Knowledge Distillation, IEEE Transactions
on Parallel and Distributed Systems 34(2).

    down  the model w^t                              4 P bytes a client
    up    the trained model w_k and the count n_k    4 P bytes a client
    client, from w^t: L = CE + lambda tau^2 KL(softmax(w_k^prev(x) / tau), softmax(w(x) / tau))
    w^{t+1} = sum over the cohort of n_k w_k / sum of n_k

A client keeps w_k, its teacher next time, and is evaluated with it. Readings: the teacher is frozen and in
eval mode, and stays at the client (the released code sends it along); on a first participation there is none,
and L is CE; lambda 1, tau 1 (the released code's); all E epochs are of L.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Averaged,
    ClientContext,
    Evaluable,
    Message,
    MethodOptions,
    OneExchange,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation


class Options(MethodOptions):
    """pFedSD's options."""

    lambda_kd: float = Field(1.0, ge=0, description="weight of the distillation term, lambda")
    tau: float = Field(1.0, gt=0, description="temperature; the term is times tau^2")


class PFedSD(OneExchange[Tensor, Tensor | None], plain_training=True):
    """The server's state is w, a client's its last local model; None before the first."""

    options: Options
    summary = "FedAvg with distillation from the client's own last model, which is its personal one"
    paper = "Jin et al. 2022, IEEE TPDS 34(2)"
    server_keeps = "the global model"
    client_keeps = "its last local model"
    down = {"student": "weights"}
    up = {"student": Averaged("weights", by="samples")}
    evaluates = ("global", "personal")

    def init_server(self, ctx: ServerContext) -> Tensor:
        """w^0, [P]."""
        return ctx.initial_vector()

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send w^t; the teacher w_k^prev is at the client already."""
        return Message(student=server)

    def client_update(
        self, client: Tensor | None, message: Message, ctx: ClientContext
    ) -> tuple[Tensor | None, Reply]:
        """Train from w^t on L, taught by w_k^prev; the result is sent, and kept as next teacher."""
        student = ctx.model(message["student"])
        if client is None or not self.options.lambda_kd:
            train_on_labels(student, ctx)
        else:
            train_batches({"student": student, "teacher": ctx.frozen_model(client)}, self.loss, ctx)
        vector = student.vector()
        return vector, Reply(student=vector, samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L."""
        logits = models["student"](batch["images"])
        with torch.no_grad():
            taught = models["teacher"](batch["images"])
        hard = cross_entropy(logits, batch["labels"], extras)
        kd = distillation(taught, logits, self.options.tau)
        return Loss(hard + self.options.lambda_kd * kd, {"ce": hard, "kd": kd})

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """Average the cohort's w_k by n_k."""
        return replies.aggregated("student", replies.numbers("samples"), into=server)

    def evaluated(self, server: Tensor) -> Mapping[str, Evaluable]:
        """The global model, and every client's own last one."""
        return {"global": server, "personal": PERSONAL}

    def personal(self, client: Tensor | None, ctx: ClientContext) -> Tensor:
        """w_k, [P]; the initial model before the first participation."""
        return ctx.initial_vector() if client is None else client
