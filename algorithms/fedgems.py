"""FedGEM and FedGEMS: a larger server model that learns from its clients' logits, and teaches them.

Cheng et al. 2021, "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv 2110.11027, Algorithm 1. A labelled public set lies at the server and at every client.

    once    every client trains on its own data
    server  for each public batch, from the logits l_s of a forward in eval mode (`branch`):
              S1  l_s right:                 CE, and pool_i <- l_s                              (eq. 1)
              S2  wrong, pool_i is there:    eps CE + (1 - eps) KL(pool_i, l_s)                 (eq. 2)
              S3  wrong, it is not:          eps CE + (1 - eps) KL(sum_j alpha_j l_j, l_s)      (eq. 5)
                  alpha: softmax of 1 / H(p_j) over the clients that are right, 0 for others    (eq. 3, 4)
            one step on the batch's mean; a forward after it gives the batch's L_s
    client  an epoch on the public set, eps CE + (1 - eps) KL(L_s, l_c), then epochs on its own (eq. 6)

FedGEM selects nothing: eps CE + (1 - eps) KL(mean_j l_j, l_s) on every public sample.

    up    FedGEM: logits on all N0 public samples, 4 N0 C bytes a client; FedGEMS: on those of S3 alone
    down  L_s, 4 N0 C bytes a client; FedGEMS: and the ids of S3's samples, 4 bytes each

Both sides keep their models and their Adam. Readings: H in nats, at least 1e-8; where no client is right
the KL term is left out; L_s comes from the model in eval mode, as every teacher's logits do; an ablated
branch (Table 5) learns as FedGEM does; the plateau's accuracy is the share of public samples in S1. "Self
evaluation" (section 3.3.1) is read as eval mode; it differs from the training forward where a model has
BatchNorm. The server's running statistics are of public images, as all of its training; clients' follow
public and own ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Answers,
    Architecture,
    ClientContext,
    Cohort,
    Evaluable,
    Evaluated,
    Message,
    Method,
    Questions,
    Reply,
    ServerContext,
)
from rayfed_kd.toolbox.distillation import normalising
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, public_logits, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Optimizer, faded
from rayfed_kd.toolbox.own_models import OwnModels
from rayfed_kd.toolbox.public_data import train_on_public
from rayfed_kd.toolbox.server_models.larger_server import (
    ClientState,
    GEMOptions,
    Lesson,
    ServerState,
    blended,
    entropy_weights,
    learn_public,
    mean_logits,
)

COUNTED = ("self_training", "self_distillation", "ensemble_distillation", "untaught")


class Options(GEMOptions):
    """FedGEMS' options: a branch that is off learns as FedGEM does (Table 5)."""

    selective: ClassVar[bool] = True
    branch: Literal["eval", "train"] = Field(
        "eval", description="the server's forward pass that says which samples it is right about"
    )
    self_training: bool = Field(True, description="S1: labels alone where the server is right")
    self_distillation: bool = Field(True, description="S2: its own logits from when it was right")
    ensemble_distillation: bool = Field(True, description="S3: weighted logits of clients that are right")


class FedGEM(OwnModels, Method[ServerState, ClientState], plain_training=True):
    """A larger server model on top of FedMD's exchange."""

    options: GEMOptions
    summary = "a larger server model learns from the mean of its clients' logits and teaches them"
    paper = "Cheng et al. 2021, arXiv 2110.11027"
    server_keeps = "its model and optimiser, who has started"
    client_keeps = "its model and optimiser"
    down = {"knowledge": "logits"}
    up = {"logits": Answers("logits")}
    heterogeneous = True
    public = "labels"
    evaluates = ("server", "personal")

    def architectures(self) -> Mapping[str, Architecture]:
        """The server's larger classifier, by the name `server`."""
        return {"server": self.options.server.architecture()}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if the images cannot take `public_augment`."""
        self.options.check_augment(ctx)

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The server's initial model; nobody has started, and the pool, [N0, C], holds no logits."""
        pool = torch.zeros(len(ctx.public), ctx.classes)
        known = torch.zeros(len(pool), dtype=torch.bool)
        return ServerState(ctx.initial_vector("server"), {}, (), pool, known)

    def init_client(self, ctx: ClientContext) -> ClientState:
        """An initial model that no other client has: clients' models are never averaged."""
        return ClientState(ctx.own_initial_vector(), {})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Those who are new train; the server learns from the cohort; the cohort learns from it."""
        new = [client for client in cohort.clients if client not in server.started]
        if new and self.options.start_epochs:
            # Who is too late, or sends a bad reply, keeps the untrained model, and stays new.
            new = cohort.scatter(self.start, {client: Message(rate=server.rate) for client in new}).clients
        server = replace(server, started=tuple(sorted({*server.started, *new})))
        server, knowledge = self.fuse(server, cohort, ctx)
        cohort.broadcast(self.update, Message(knowledge=knowledge, rate=server.rate))
        return server

    def fuse(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> tuple[ServerState, Tensor]:
        """Every sample learns from the mean of all clients' logits. Gives L_s, [N0, C], too."""
        mean = torch.zeros_like(server.pool, device=ctx.device)
        if self.options.label_weight < 1:
            questions = cohort.questions(self.predict, Message(), answer="logits")
            mean = mean_logits(list(questions.ask(ctx.public.ids))).to(ctx.device)

        def teach(ids: Tensor, logits: Tensor, labels: Tensor) -> Lesson:
            return blended(self.options.taught(mean[ids]), self.options.label_weight)

        return learn_public(server, teach, self.options, ctx)

    def start(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """A client's first epochs on its own data."""
        student = ctx.model(client.model)
        optimizer = Optimizer(faded(ctx.local.optimizer, message["rate"]), student, client.moments)
        train_on_labels(student, ctx, range(self.options.start_epochs), optimizer)
        return ClientState(student.vector(), optimizer.state()), Reply()

    def predict(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """l_j: a client's logits on all public samples, [N0, C]."""
        return client, Reply(logits=public_logits(ctx.frozen_model(client.model), ctx))

    def update(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """The public set with the server's logits (eq. 6), then the client's own data."""
        student = ctx.model(client.model)
        optimizer = Optimizer(faded(ctx.local.optimizer, message["rate"]), student, client.moments)
        train_on_public(
            student,
            self.public_loss,
            ctx,
            epochs=self.options.public_epochs,
            optimizer=optimizer,
            said=self.options.taught(message["knowledge"]),
            labelled=True,
            augmenting=self.options,
        )
        train_on_labels(student, ctx, optimizer=optimizer)
        return ClientState(student.vector(), optimizer.state()), Reply()

    def public_loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """eps CE + (1 - eps) KL(L_s, l_c) (eq. 6)."""
        epsilon, student = self.options.label_weight, models["student"]
        with normalising(student, self.options.batchnorm):
            logits = student(batch["images"])
        loss = epsilon * cross_entropy(logits, batch["labels"])
        if epsilon == 1:
            return Loss(loss)
        kl = distillation(batch["said"], logits, self.options.temperature)
        return Loss(loss + (1 - epsilon) * kl, {"kl": kl})

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """The server's larger model, and every client's own."""
        return {"server": Evaluated(server.model, "server"), "personal": PERSONAL}


class FedGEMS(FedGEM, plain_training=True):
    """FedGEM with selective knowledge fusion: clients are asked about few samples."""

    options: Options
    summary = "a larger server model that asks its clients only about samples that it never got right"
    server_keeps = "its model and optimiser, the pool of logits, who has started"
    down = {"knowledge": "logits", "ids": "ids"}

    def fuse(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> tuple[ServerState, Tensor]:
        """Every sample learns as its branch says."""
        questions = None
        if self.options.label_weight < 1:
            questions = cohort.questions(self.predict, Message(), answer="logits", question="ids")
        fusion = Fusion(self.options, server, questions, ctx)
        learned, knowledge = learn_public(server, fusion.teach, self.options, ctx, self.options.branch)
        ctx.log(**{name: torch.tensor(count) for name, count in fusion.counts.items()})  # Fig. 3
        return replace(learned, pool=fusion.pool.cpu(), known=fusion.known.cpu()), knowledge


class Fusion:
    """The three branches of a round, and what they leave in the pool.

    Attributes:
        pool, known: as the server's.
        counts: samples that went each way, and those of S3 that no client was right about.
    """

    def __init__(
        self, options: Options, server: ServerState, questions: Questions | None, ctx: ServerContext
    ) -> None:
        self._options, self._questions = options, questions
        # Copied, because `teach` writes into them and the server's state before the round must stay.
        self.pool, self.known = (value.to(ctx.device, copy=True) for value in (server.pool, server.known))
        self.counts = dict.fromkeys(COUNTED, 0.0)

    def teach(self, ids: Tensor, logits: Tensor, labels: Tensor) -> Lesson:
        """A batch's lesson from the server's logits on it (Algorithm 1, lines 5 to 13)."""
        options = self._options
        right = logits.argmax(dim=1) == labels
        recalled, unknown = ~right & self.known[ids], ~right & ~self.known[ids]
        self.pool[ids[right]], self.known[ids[right]] = logits[right], True
        # As if all were S2's; the rows of S1, S3 and ablated branches are put right below.
        lesson = blended(self.pool[ids], options.label_weight)  # S2
        if options.self_training:  # S1
            lesson.hard[right], lesson.soft[right] = 1.0, 0.0
        # Samples that clients are asked about: S3's, and those of a branch that is ablated (Table 5).
        query = unknown.clone()
        query |= right & (not options.self_training)
        query |= recalled & (not options.self_distillation)
        nobody_right = torch.zeros_like(query)
        # No questions at epsilon = 1, where no KL term has a weight.
        if self._questions is not None and query.any():
            answers = self._questions.ask(ids[query]).to(logits)
            lesson.teacher[query] = mean_logits(list(answers))
            if options.ensemble_distillation:  # S3
                alpha = entropy_weights(answers, labels[query])
                chosen = unknown[query]
                lesson.teacher[unknown] = torch.einsum("kn,knc->nc", alpha, answers)[chosen]
                nobody_right[unknown] = (alpha.sum(dim=0) == 0)[chosen]
                lesson.soft[nobody_right] = 0.0
        for name, where in zip(self.counts, (right, recalled, unknown, nobody_right), strict=True):
            self.counts[name] += float(where.sum())
        return lesson._replace(teacher=options.taught(lesson.teacher))
