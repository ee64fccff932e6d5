"""FedMD: clients of any architecture teach one another through their logits on a public set.

Li and Wang 2019, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv 1910.03581,
Algorithm 1.

    once      every client trains on the public set, then on its own data
    round     z~(x) = 1/m sum over the cohort of z_k(x)          on N0 public samples
              digest   own logits towards z~                     on these samples
              revisit  cross entropy                             on the client's own data

    up    logits z_k      4 N0 C bytes a client
    down  consensus z~    4 N0 C bytes a client

A client keeps its model and, as the released code does, two optimisers: one for public, one for its own
data. Readings: `digest: kl` is T^2 KL(s_T(z~), s_T(z_k)), and `ce_kl` that plus CE on public labels, as eq. 5
of FedD2S, whose FedMD this is; with `consensus: probabilities` (as FedD2S tells
FedMD) softmax outputs are averaged, and z~ is the logarithm of their mean; `public_samples` are drawn anew
each round from a seed that the server sends, so that no ids travel; without digest nothing travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.protocol import (
    Averaged,
    ClientContext,
    Cohort,
    Control,
    Declaration,
    Message,
    Method,
    Replies,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, public_logits, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation, logit_error
from rayfed_kd.toolbox.optimizers import Moments, Optimizer
from rayfed_kd.toolbox.own_models import OwnModels
from rayfed_kd.toolbox.public_data import (
    TEACHER_CONTROLS,
    PublicOptions,
    TeacherOptions,
    drawn_seed,
    public_label_loss,
    train_on_public,
)
from rayfed_kd.toolbox.robust import AggregationOptions, aggregate


class Options(AggregationOptions, PublicOptions, TeacherOptions):
    """FedMD's options; E of the recipe's `local` are the revisit's epochs."""

    digest: Literal["mae_logits", "mse_logits", "kl", "ce_kl"] = Field(
        "mae_logits", description="the digest's loss; ce_kl: CE on public labels + T^2 KL"
    )
    temperature: float = Field(1.0, gt=0, description="T of digest: kl and ce_kl; KL is times T^2")
    consensus: Literal["logits", "probabilities"] = Field("logits", description="what is averaged")
    digest_epochs: int = Field(1, ge=0, description="passes over them")
    digest_batch_size: int | None = Field(None, ge=1, description="null: local.batch_size")
    pretrain_public: int = Field(1, ge=0, description="first epochs on the labelled public set")
    pretrain_private: int = Field(1, ge=0, description="epochs on the client's own data after them")

    @model_validator(mode="after")
    def _fitting(self) -> Options:
        if self.consensus == "probabilities" and self.digest not in ("kl", "ce_kl"):
            raise ValueError(f"consensus: probabilities has no logits for digest: {self.digest}")
        return self

    @property
    def labelled(self) -> bool:
        """Whether the digest needs public labels (eq. 5 of FedD2S, as its FedMD is described)."""
        return self.digest == "ce_kl" and self.digest_epochs > 0

    @property
    def digests(self) -> bool:
        """Whether clients learn on a round's public samples; without a teacher only labels are left."""
        return self.digest_epochs > 0 and (self.teacher != "none" or self.labelled)

    @property
    def controls(self) -> Mapping[Control, Sequence[str]]:
        """Of a run that is none itself and trains on public labels."""
        if self.teacher != "exchanged" or not (self.digests and (self.pretrain_public or self.labelled)):
            return {}
        kl = ["method.digest=kl"] if self.labelled else []
        return TEACHER_CONTROLS | {"no labels": ["method.pretrain_public=0", *kl]}

    @property
    def averages(self) -> bool:
        """Whether the consensus is the plain mean of logits."""
        return self.consensus == "logits" and self.aggregation == "mean"


@dataclass(frozen=True)
class ServerState:
    """started: clients that are trained for a first time, ascending."""

    started: tuple[int, ...]


@dataclass(frozen=True)
class ClientState:
    """What a client keeps.

    Attributes:
        model: [P], its own.
        public, private: moments of its optimisers.
    """

    model: Tensor
    public: Moments
    private: Moments


class FedMD(OwnModels, Method[ServerState, ClientState], plain_training=True):
    """Federated learning via model distillation."""

    options: Options
    summary = "clients of any architecture learn public labels, then the mean of their logits on public data"
    paper = "Li and Wang 2019, arXiv 1910.03581"
    server_keeps = "who was pre-trained"
    client_keeps = "its model, two optimisers"
    down = {"consensus": "logits"}
    heterogeneous = True

    @property
    def up(self) -> Declaration:
        """Averaged only as logits: a mean of probabilities, or a robust one, needs each client's."""
        return {"logits": Averaged("logits") if self.options.averages else "logits"}

    @property
    def public(self) -> Literal["samples", "labels"]:
        """Labels if clients pre-train on the public set, or digest its labels."""
        return "labels" if self.options.pretrain_public or self.options.labelled else "samples"

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError with too few public samples."""
        self.options.check_public(ctx)

    def init_server(self, ctx: ServerContext) -> ServerState:
        """Nobody is pre-trained."""
        return ServerState(())

    def init_client(self, ctx: ClientContext) -> ClientState:
        """An initial model that no other client has; both optimisers are without moments."""
        return ClientState(ctx.own_initial_vector(), {}, {})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """First training of those who are new, then predictions up, and the consensus down."""
        new = [client for client in cohort.clients if client not in server.started]
        if new and (self.options.pretrain_public or self.options.pretrain_private):
            # Who is too late, or sends a bad reply, keeps the untrained model, and stays new.
            new = cohort.scatter(self.start, {client: Message() for client in new}).clients
        content: dict[str, Any] = {"seed": drawn_seed(ctx)} if self.options.digests else {}
        if content and self.options.teacher != "none":
            content["consensus"] = self.agreed(cohort.broadcast(self.predict, Message(**content)))
        cohort.broadcast(self.update, Message(**content))
        return ServerState(tuple(sorted({*server.started, *new})))

    def start(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """The first training, on public labels and on the client's own."""
        student = ctx.model(client.model)
        public = Optimizer(ctx.local.optimizer, student, client.public)
        train_on_public(
            student,
            public_label_loss,
            ctx,
            epochs=self.options.pretrain_public,
            batch_size=self.options.digest_batch_size,
            optimizer=public,
            labelled=True,
        )
        private = Optimizer(ctx.local.optimizer, student, client.private)
        train_on_labels(student, ctx, range(self.options.pretrain_private), private)
        return ClientState(student.vector(), public.state(), private.state()), Reply()

    def predict(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """z_k: the client's logits on the round's public samples, [N0, C]."""
        ids = self.options.ids(message["seed"], ctx)
        return client, Reply(logits=public_logits(ctx.frozen_model(client.model), ctx, ids))

    def agreed(self, replies: Replies) -> Tensor:
        """z~: [N0, C], the mean of all that came, everyone's as much."""
        logits = replies.vectors("logits")
        if self.options.averages:
            return replies.mean("logits")
        if self.options.consensus == "logits":
            return aggregate(logits, [1.0] * len(logits), self.options)
        likely = [z.div(self.options.temperature).softmax(dim=1) for z in logits]
        mixed = aggregate(likely, [1.0] * len(likely), self.options)
        # Times T, by which the digest divides again. The smallest number for a 0, which has no logarithm.
        return mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log() * self.options.temperature

    def update(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """Digest, then revisit."""
        student = ctx.model(client.model)
        public = Optimizer(ctx.local.optimizer, student, client.public)
        if self.options.digests:
            train_on_public(
                student,
                self.digest_loss,
                ctx,
                epochs=self.options.digest_epochs,
                batch_size=self.options.digest_batch_size,
                optimizer=public,
                ids=self.options.ids(message["seed"], ctx),
                said=self.options.taught(message["consensus"]) if "consensus" in message else None,
                labelled=self.options.labelled,
            )
        private = Optimizer(ctx.local.optimizer, student, client.private)
        train_on_labels(student, ctx, optimizer=private)
        return ClientState(student.vector(), public.state(), private.state()), Reply()

    def digest_loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """Own logits towards z~, and with `ce_kl` towards the labels."""
        logits = models["student"](batch["images"])
        loss: Any = cross_entropy(logits, batch["labels"]) if self.options.labelled else 0.0
        if self.options.teacher != "none":
            loss = loss + self._digest(batch["said"], logits)
        return Loss(loss, {"digest": loss})

    def _digest(self, consensus: Tensor, logits: Tensor) -> Tensor:
        if self.options.digest in ("kl", "ce_kl"):
            return distillation(consensus, logits, self.options.temperature)
        return logit_error(consensus, logits, squared=self.options.digest == "mse_logits")
