"""FedGKD: clients distil from the mean of the last global models.

Yao, Pan, Dai, Wan, Ding, Jin, Xu, Sun 2021, arXiv 2107.00051.

    teacher   wbar^t = mean of the last min(t, M) global models, w^t among them
    L         CE + gamma T^2 KL(softmax(f(wbar^t) / T), softmax(f(w) / T))
    server    FedAvg's
    down      w^t and wbar^t (M = 1: w^t alone, it is both)    8 P (4 P) bytes a client
    up        the trained model w_k and the count n_k          4 P bytes a client

Clients keep nothing. Readings: gamma as it stands (`half: true` halves it, as KDIA's released code does); the
buffer grows from one model to M; the term is left out before the first update, as in FedGKD's released code.
`loss: double_softmax` is the arithmetic of KDIA's: a cross entropy that takes the student's probabilities for
logits. gamma = 0 is FedAvg. The variant FedGKD-VOTE, which needs validation data at the server, is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    ClientContext,
    Message,
    OneExchange,
    Replies,
    Reply,
    ServerContext,
    weighted_mean,
)
from rayfed_kd.toolbox.averaging import Averages, AveragingOptions, new_model
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation


class Options(AveragingOptions):
    """FedGKD's options."""

    gamma: float = Field(0.2, ge=0, description="weight of the distillation term")
    temperature: float = Field(1.0, gt=0, description="T of the distillation")
    buffer: int = Field(5, ge=1, description="M, how many global models the teacher is the mean of")
    half: bool = Field(False, description="gamma / 2 instead of gamma")
    loss: Literal["kl", "double_softmax"] = Field(
        "kl", description="T^2 KL, or a cross entropy that applies softmax to the student twice"
    )


@dataclass(frozen=True)
class ServerState:
    """The last global models and their mean.

    Attributes:
        recent: the last min(t, M) global models, [P] each, the latest first: w^t.
        teacher: [P], wbar^t.
        version: how many updates made w^t.
    """

    recent: tuple[Tensor, ...]
    teacher: Tensor
    version: int = 0


class FedGKD(Averages, OneExchange[ServerState, None], plain_training=True):
    """Global knowledge distillation."""

    options: Options
    summary = "local distillation from the mean of the last global models"
    paper = "Yao et al. 2021, arXiv 2107.00051"
    server_keeps = "the last global models (buffer) and their mean"
    client_keeps = "nothing"
    down = {"student": "weights", "teacher": "weights"}
    evaluates = ("global",)

    def init_server(self, ctx: ServerContext) -> ServerState:
        """A buffer of one model, w^0, which is its own mean."""
        initial = ctx.initial_vector()
        return ServerState((initial,), initial)

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        """Send w^t, wbar^t unless w^t is the teacher, and whether there was an update to distil from."""
        student, distil = server.recent[0], int(server.version > 0)
        if self.options.buffer == 1 or not (distil and self.options.gamma):
            return Message(student=student, distil=distil)
        return Message(student=student, teacher=server.teacher, distil=distil)

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train w^t on L with wbar^t frozen; on cross entropy alone before the first update."""
        student = ctx.model(message["student"])
        if self.options.gamma and message["distil"]:
            teacher = ctx.frozen_model(message["teacher" if "teacher" in message else "student"])
            train_batches({"student": student, "teacher": teacher}, self.loss, ctx)
        else:
            train_on_labels(student, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L."""
        logits = models["student"](batch["images"])
        hard = cross_entropy(logits, batch["labels"], extras)
        with torch.no_grad():
            taught = models["teacher"](batch["images"])
        soft = self._distillation(taught, logits)
        weight = self.options.gamma * (0.5 if self.options.half else 1.0)
        return Loss(hard + weight * soft, {"ce": hard, "kd": soft})

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """Put the cohort's average first in the buffer of M models; wbar^{t+1} is their plain mean."""
        mean = new_model(replies, self.options, server.recent[0])
        recent = (mean, *server.recent)[: self.options.buffer]
        return ServerState(recent, weighted_mean(recent, [1.0] * len(recent)), server.version + 1)

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        """The global model w^t, not the teacher."""
        return {"global": server.recent[0]}

    def _distillation(self, taught: Tensor, logits: Tensor) -> Tensor:
        temperature = self.options.temperature
        if self.options.loss == "kl":
            return distillation(taught, logits, temperature)
        return F.cross_entropy((logits / temperature).softmax(1), (taught / temperature).softmax(1))
