"""FedGEM and FedGEMS: a larger server model that learns from its clients' logits, and teaches them.

Cheng et al. 2021, "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv 2110.11027, Algorithm 1. A labelled public set lies at the server and at every client.

    once    every client trains on its own data
    server  for each public batch, from the logits l_s of its training forward:
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
branch (Table 5) learns as FedGEM does; the plateau's accuracy is the share of public samples in S1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    PERSONAL,
    Architecture,
    ClientContext,
    Cohort,
    Evaluable,
    Evaluated,
    Message,
    Method,
    MethodOptions,
    OptimizerRecipe,
    Questions,
    Reply,
    ServerContext,
    weighted_mean,
)
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, public_logits, train_on_labels
from rayfed_kd.toolbox.losses import blended_loss, cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Moments, Optimizer
from rayfed_kd.toolbox.public_data import train_on_public_labels
from rayfed_kd.toolbox.server_models import ServerModel

LEAST_ENTROPY = 1e-8


class ServerOptimizer(OptimizerRecipe):
    """The server's optimiser; what is not given is Table 13's."""

    name: Literal["sgd", "adam"] = Field("adam", description="the optimiser")
    lr: float = Field(0.001, gt=0, description="learning rate")
    weight_decay: float = Field(1e-4, ge=0, description="L2 weight decay")


class Plateau(MethodOptions):
    """Learning rates fall where the server's accuracy rises no more."""

    factor: float = Field(0.1, gt=0, lt=1, description="what all learning rates are multiplied by")
    patience: int = Field(10, ge=0, description="rounds without a new best that are waited through")


class GEMOptions(MethodOptions):
    """FedGEM's options; E of the recipe's `local` are a client's epochs on its own data."""

    server: ServerModel = ServerModel()
    epsilon: float = Field(0.75, ge=0, le=1, description="weight of the labels; 1 - epsilon of the teachers")
    temperature: float = Field(1.0, gt=0, description="T of every KL term, which is times T^2")
    server_epochs: int = Field(1, ge=1, description="passes over the public set at the server")
    server_batch_size: int = Field(256, ge=1, description="public samples a batch there")
    server_optimizer: ServerOptimizer = ServerOptimizer()
    public_epochs: int = Field(1, ge=0, description="a client's passes over the public set")
    start_epochs: int = Field(1, ge=0, description="a client's first epochs on its own data")
    plateau: Plateau | None = Field(None, description="a schedule of the learning rates; null: constant")


class Options(GEMOptions):
    """FedGEMS' options: a branch that is off learns as FedGEM does (Table 5)."""

    self_training: bool = Field(True, description="S1: labels alone where the server is right")
    self_distillation: bool = Field(True, description="S2: its own logits from when it was right")
    ensemble_distillation: bool = Field(True, description="S3: weighted logits of clients that are right")


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        model: [P_s].
        moments: of its optimiser.
        started: clients that are trained for a first time, ascending.
        pool: [N0, C], logits of samples from when they were right.
        known: [N0] bool, which have such.
        rate: factor of all learning rates.
        best, waited: the best share of right samples, and rounds since it.
    """

    model: Tensor
    moments: Moments
    started: tuple[int, ...]
    pool: Tensor
    known: Tensor
    rate: float = 1.0
    best: float = 0.0
    waited: int = 0


@dataclass(frozen=True)
class ClientState:
    """A client's model, [P_k], and the moments of its optimiser."""

    model: Tensor
    moments: Moments


class Lesson(NamedTuple):
    """How a batch is learned: weights of labels and of teachers, [n] each; the teachers' logits, [n, C]."""

    hard: Tensor
    soft: Tensor
    teacher: Tensor


Teach = Callable[[Tensor, Tensor, Tensor], Lesson]


class FedGEM(Method[ServerState, ClientState]):
    """A larger server model on top of FedMD's exchange."""

    options: GEMOptions
    summary = "a larger server model learns from the mean of its clients' logits and teaches them"
    paper = "Cheng et al. 2021, arXiv 2110.11027"
    server_keeps = "its model and optimiser, who has started"
    client_keeps = "its model and optimiser"
    down = {"knowledge": "logits"}
    up = {"logits": "logits"}
    heterogeneous = True
    public = "labels"

    def architectures(self) -> Mapping[str, Architecture]:
        return {"server": self.options.server.architecture()}

    def init_server(self, ctx: ServerContext) -> ServerState:
        pool = torch.zeros(len(ctx.public), ctx.classes)
        known = torch.zeros(len(pool), dtype=torch.bool)
        return ServerState(ctx.initial_vector("server"), {}, (), pool, known)

    def init_client(self, ctx: ClientContext) -> ClientState:
        return ClientState(ctx.own_initial_vector(), {})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Those who are new train; the server learns from the cohort; the cohort learns from it."""
        new = [client for client in cohort.clients if client not in server.started]
        if new and self.options.start_epochs:
            cohort.scatter(self.start, {client: Message(rate=server.rate) for client in new})
        server = replace(server, started=tuple(sorted({*server.started, *new})))
        server, knowledge = self.fuse(server, cohort, ctx)
        cohort.broadcast(self.update, Message(knowledge=knowledge, rate=server.rate))
        return server

    def fuse(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> tuple[ServerState, Tensor]:
        """Every sample learns from the mean of all clients' logits. Gives L_s, [N0, C], too."""
        mean = torch.zeros_like(server.pool, device=ctx.device)
        if self.options.epsilon < 1:
            questions = cohort.questions(self.predict, Message(), answer="logits")
            mean = mean_logits(list(questions.ask(ctx.public.ids))).to(ctx.device)

        def teach(ids: Tensor, logits: Tensor, labels: Tensor) -> Lesson:
            return self.by_epsilon(mean[ids])

        return self._learned(server, teach, ctx)

    def start(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """A client's first epochs on its own data."""
        student = ctx.model(client.model)
        optimizer = Optimizer(_slowed(ctx.local.optimizer, message["rate"]), student, client.moments)
        train_on_labels(student, ctx, range(self.options.start_epochs), optimizer)
        return ClientState(student.vector(), optimizer.state()), Reply()

    def predict(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """l_j: a client's logits on all public samples, [N0, C]."""
        return client, Reply(logits=public_logits(ctx.frozen_model(client.model), ctx))

    def update(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """The public set with the server's logits (eq. 6), then the client's own data."""
        student = ctx.model(client.model)
        optimizer = Optimizer(_slowed(ctx.local.optimizer, message["rate"]), student, client.moments)
        train_on_public_labels(
            student,
            ctx,
            epochs=self.options.public_epochs,
            batch_size=ctx.local.batch_size,
            optimizer=optimizer,
            loss=self.public_loss,
            said=message["knowledge"],
        )
        train_on_labels(student, ctx, range(ctx.local.epochs), optimizer)
        return ClientState(student.vector(), optimizer.state()), Reply()

    def public_loss(self, models: Models, batch: Tensors, given: Tensors) -> Loss:
        """eps CE + (1 - eps) KL(L_s, l_c) (eq. 6)."""
        epsilon, logits = self.options.epsilon, models["student"](batch["images"])
        loss = epsilon * cross_entropy(logits, batch["labels"])
        if epsilon == 1:
            return Loss(loss)
        kl = distillation(batch["said"], logits, self.options.temperature)
        return Loss(loss + (1 - epsilon) * kl, {"kl": kl})

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        return {"server": Evaluated(server.model, "server"), "personal": PERSONAL}

    def personal(self, client: ClientState, ctx: ClientContext) -> Tensor:
        return client.model

    def by_epsilon(self, teacher: Tensor) -> Lesson:
        """eps CE + (1 - eps) KL for every sample."""
        hard = torch.full_like(teacher[:, 0], self.options.epsilon)
        return Lesson(hard, torch.full_like(hard, 1 - self.options.epsilon), teacher)

    def _learned(self, server: ServerState, teach: Teach, ctx: ServerContext) -> tuple[ServerState, Tensor]:
        """The server's epochs on the public set (Algorithm 1, lines 4 to 15), and L_s."""
        options, public = self.options, ctx.public
        model = ctx.model(server.model, "server")
        moments = {name: value.to(ctx.device) for name, value in server.moments.items()}
        optimizer = Optimizer(_slowed(options.server_optimizer, server.rate), model, moments)
        knowledge = torch.zeros(len(public), ctx.classes, device=ctx.device)
        right = 0.0
        for epoch in range(options.server_epochs):
            for ids, images in public.epoch(epoch, options.server_batch_size):
                labels, logits = public.labels(ids), model(images)
                lesson = teach(ids, logits.detach(), labels)
                shares = (lesson.hard, lesson.soft)
                loss = blended_loss(logits, labels, lesson.teacher, shares, options.temperature)
                ctx.log(server=loss)
                optimizer.minimise(loss)
                knowledge[ids] = model.predict(images)
                right += float((logits.argmax(dim=1) == labels).sum())
        kept = {name: value.cpu() for name, value in optimizer.state().items()}
        learned = replace(server, model=model.vector().cpu(), moments=kept)
        accuracy = right / (options.server_epochs * len(public))
        return self._paced(learned, accuracy), knowledge.cpu()

    def _paced(self, server: ServerState, accuracy: float) -> ServerState:
        """Learning rates fall after more than `patience` rounds without a new best."""
        plateau = self.options.plateau
        if accuracy > server.best:
            return replace(server, best=accuracy, waited=0)
        if plateau is None or server.waited < plateau.patience:
            return replace(server, waited=server.waited + 1)
        return replace(server, waited=0, rate=server.rate * plateau.factor)


class FedGEMS(FedGEM):
    """FedGEM with selective knowledge fusion: clients are asked about few samples."""

    options: Options
    summary = "a larger server model that asks its clients only about samples that it never got right"
    server_keeps = "its model and optimiser, the pool of logits, who has started"
    down = {"knowledge": "logits", "ids": "ids"}

    def fuse(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> tuple[ServerState, Tensor]:
        """Every sample learns as its branch says."""
        questions = None
        if self.options.epsilon < 1:
            questions = cohort.questions(self.predict, Message(), answer="logits", question="ids")
        fusion = Fusion(self, server, questions, ctx)
        learned, knowledge = self._learned(server, fusion.teach, ctx)
        ctx.log(**{name: torch.tensor(count) for name, count in fusion.counts.items()})  # Fig. 3
        return replace(learned, pool=fusion.pool.cpu(), known=fusion.known.cpu()), knowledge


class Fusion:
    """The three branches of a round, and what they leave in the pool.

    Attributes:
        pool, known: as the server's.
        counts: samples that went each way, and those of S3 that no client was right about.
    """

    def __init__(
        self, method: FedGEMS, server: ServerState, questions: Questions | None, ctx: ServerContext
    ) -> None:
        self._method, self._options, self._questions = method, method.options, questions
        self.pool, self.known = (value.to(ctx.device, copy=True) for value in (server.pool, server.known))
        self.counts = dict.fromkeys(
            ("self_training", "self_distillation", "ensemble_distillation", "untaught"), 0.0
        )

    def teach(self, ids: Tensor, logits: Tensor, labels: Tensor) -> Lesson:
        """A batch's lesson from the server's logits on it (Algorithm 1, lines 5 to 13)."""
        options = self._options
        right = logits.argmax(dim=1) == labels
        recalled, unknown = ~right & self.known[ids], ~right & ~self.known[ids]
        self.pool[ids[right]], self.known[ids[right]] = logits[right], True
        lesson = self._method.by_epsilon(self.pool[ids])  # S2
        if options.self_training:  # S1
            lesson.hard[right], lesson.soft[right] = 1.0, 0.0
        asked = unknown.clone()
        asked |= right & (not options.self_training)
        asked |= recalled & (not options.self_distillation)
        untaught = torch.zeros_like(asked)
        if self._questions is not None and asked.any():
            answers = self._questions.ask(ids[asked]).to(logits)
            lesson.teacher[asked] = mean_logits(list(answers))
            if options.ensemble_distillation:  # S3
                alpha = entropy_weights(answers, labels[asked])
                chosen = unknown[asked]
                lesson.teacher[unknown] = torch.einsum("kn,knc->nc", alpha, answers)[chosen]
                untaught[unknown] = (alpha.sum(dim=0) == 0)[chosen]
                lesson.soft[untaught] = 0.0
        for name, where in zip(self.counts, (right, recalled, unknown, untaught), strict=True):
            self.counts[name] += float(where.sum())
        return lesson


def entropy_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """alpha: among the clients that are right about a sample, the softmax of 1 / H; 0 for the others (eq. 4).

    Args:
        logits: [K, n, C], the clients'.
        labels: [n].
    Returns: [K, n]; a column of zeros where no client is right.
    """
    log_p = logits.log_softmax(dim=2)
    entropy = -(log_p.exp() * log_p).sum(dim=2)
    sure = (1 / entropy.clamp(min=LEAST_ENTROPY)).masked_fill(logits.argmax(dim=2) != labels, -math.inf)
    return sure.softmax(dim=0).nan_to_num(0.0)


def mean_logits(logits: Sequence[Tensor]) -> Tensor:
    """mean_j l_j, [n, C], of any sequence of clients' logits."""
    return weighted_mean(logits, [1.0] * len(logits))


def _slowed(recipe: OptimizerRecipe, rate: float) -> OptimizerRecipe:
    return recipe if rate == 1 else recipe.model_copy(update={"lr": recipe.lr * rate})
