"""TAKFL: each group of clients' ensemble teaches each group's model by itself; task vectors are added up.

Morafah, Kungurtsev, Chang, Chen, Lin 2024, Towards Diverse Device Heterogeneous Federated Learning via Task
Arithmetic Knowledge Integration, NeurIPS; released code hojinchangucsd/TAKFL.

    prototype  one of M architectures; the clients that have it start from its model w_m
    w_m        sum_k p_k w_k over the cohort's clients of prototype m
    L_m, S_m   logits of public samples: the mean of these clients' models', and w_m's own
    w_m^j      w_m after E passes on  T^2 KL(s_T(L_j), s_T(z)) + A_m 20^2 KL(s_20(S_m), s_20(z)),
               for each teacher j = 1 ... M
    tau_m^j    w_m^j - w_m, the task vector
    server     w_m <- w_m + sum_j lambda_{m,j} tau_m^j
    lambda     a fixed matrix
    down, up   the client's prototype, and that after training with n_k     4 P_m bytes a client each way

Prototypes stand in the order of their first clients. Clients keep nothing. Readings: lambda is uniform unless
the recipe says more; the released heuristic, which picks it by accuracy on labelled samples, is not here. A
prototype without a reply teaches nobody: its tau is 0, a uniform lambda is over the others, and w_m learns
as it is. Running statistics are in the task vectors, BatchNorm's counters are not. With E = 0 or lambda = 0
it is FedAvg for each prototype; with one prototype, A = 0 and lambda = 1 it is FedDF at a constant rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    ClientContext,
    Cohort,
    Evaluable,
    Evaluated,
    Message,
    Method,
    MethodOptions,
    OptimizerName,
    OptimizerRecipe,
    RecipeError,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.averaging import Weighting, cohort_mean
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.ensembles import Ensemble
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, public_logits, train_on_labels
from rayfed_kd.toolbox.losses import distillation
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.public_data import train_on_public

SELF_TEMPERATURE = 20.0


class DistillationOptimizer(OptimizerRecipe):
    """The server's optimiser; what is not given is as released."""

    name: OptimizerName = "adam"
    lr: float = Field(1e-5, gt=0, description="learning rate")


class Options(MethodOptions):
    """TAKFL's options; the defaults are those of the released script for images."""

    lambdas: list[list[float]] | None = Field(
        None, description="lambda, a row for each student, an entry for each teacher; null: uniform"
    )
    temperature: float = Field(3.0, gt=0, description="T of the teachers; the loss is times T^2")
    self_weight: list[float] = Field([0.01], description="A_m of each prototype, or one for all")
    epochs: int = Field(5, ge=0, description="passes over the public samples, E, with each teacher")
    batch_size: int = Field(128, ge=1, description="public samples a step")
    optimizer: DistillationOptimizer = DistillationOptimizer()
    weighting: Weighting = Field("samples", description="a client's weight in its prototype's mean")
    batchnorm: BatchNormMode = Field("update", description=BATCHNORM)


@dataclass(frozen=True)
class ServerState:
    """models: architecture -> w_m, [P_m], in the order of the prototypes."""

    models: Mapping[str, Tensor]


class TAKFL(Method[ServerState, None], plain_training=True):
    """Task arithmetic knowledge integration."""

    options: Options
    summary = "ensembles of clients of each architecture teach each server model apart; task vectors add up"
    paper = "Morafah et al. 2024, NeurIPS (TAKFL)"
    server_keeps = "a model of each architecture"
    client_keeps = "nothing"
    down = {"student": "weights"}
    up = {"student": Unaligned("weights")}
    heterogeneous = True
    public = "samples"

    @property
    def evaluates(self) -> Sequence[str]:
        """As `evaluated`; without `lambdas`, which say how many prototypes there are, as for one."""
        return _names(len(self.options.lambdas or [[]]))

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError for lambdas or self_weight of another number of prototypes."""
        prototypes = len(ctx.client_architectures)
        rows = self.options.lambdas
        if rows is not None and [len(row) for row in rows] != [prototypes] * prototypes:
            raise RecipeError(
                f"method.lambdas: expected {prototypes} rows of {prototypes} numbers, one for each of the "
                "clients' architectures"
            )
        weights = self.options.self_weight
        if len(weights) not in (1, prototypes) or min(weights) < 0:
            raise RecipeError(
                f"method.self_weight = {weights}: expected 1 number, or {prototypes}, one for each of the "
                "clients' architectures, none below 0"
            )

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The initial model of each prototype."""
        return ServerState({name: ctx.initial_vector(name) for name in ctx.client_architectures})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Each client trains its prototype; then all teachers teach all prototypes."""
        sent = {k: Message(student=server.models[ctx.client_models[k]]) for k in cohort.clients}
        replies = cohort.scatter(self.client_update, sent)
        models: dict[str, Tensor] = dict(server.models)
        teachers: dict[str, Tensor] = {}
        for name, model in server.models.items():
            group = Replies([reply for reply in replies if ctx.client_models[reply.client] == name])
            if len(group):
                models[name] = cohort_mean(group, self.options.weighting, model)
                members = Ensemble(ctx.frozen_model(model, name), [*group.vectors("student")], batched=False)
                with torch.no_grad():
                    logits = [members(images).mean(0) for _, images in ctx.public.in_order()]
                teachers[name] = torch.cat(logits)
        if not teachers:
            return server
        return ServerState({name: self.taught(name, model, teachers, ctx) for name, model in models.items()})

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train the client's prototype by cross entropy; send it and n_k."""
        student = ctx.model(message["student"])
        train_on_labels(student, ctx)
        return None, Reply(student=student.vector(), samples=ctx.num_samples)

    def taught(self, name: str, start: Tensor, teachers: Tensors, ctx: ServerContext) -> Tensor:
        """The next w_m, [P_m].

        Args:
            name: of the prototype.
            start: [P_m], w_m.
            teachers: architecture -> L_j, [n, C], of those that have a reply.
        """
        place, row = self._row(name, [*teachers], ctx)
        if not (self.options.epochs and any(row)):
            return start
        start_logits = public_logits(ctx.frozen_model(start, name), ctx)
        weights, student, results = self.options.self_weight, ctx.model(start, name), []
        loss = partial(self.loss, weights[place % len(weights)])
        for logits, share in zip(teachers.values(), row, strict=True):
            student.load(start)
            if share:
                train_on_public(
                    student,
                    loss,
                    ctx,
                    epochs=self.options.epochs,
                    batch_size=self.options.batch_size,
                    optimizer=Optimizer(self.options.optimizer, student),
                    said=torch.stack([logits, start_logits], 1),
                )
            results.append(student.vector().cpu())
        return merged(start, results, row)

    def loss(self, self_weight: float, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """T^2 KL(s_T(L_j), s_T(z)) + A_m 20^2 KL(s_20(S_m), s_20(z)) of a batch's `said`, [batch, 2, C]."""
        with normalising(models["student"], self.options.batchnorm):
            logits = models["student"](batch["images"])
        taught = distillation(batch["said"][:, 0], logits, self.options.temperature)
        self_kd = distillation(batch["said"][:, 1], logits, SELF_TEMPERATURE)
        return Loss(taught + self_weight * self_kd, {"distillation": taught, "self_distillation": self_kd})

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """w_m as `prototype_1` to `prototype_M`, or as `global` if there is one."""
        named = zip(_names(len(server.models)), server.models.items(), strict=True)
        return {
            name: model if architecture == RECIPE_MODEL else Evaluated(model, architecture)
            for name, (architecture, model) in named
        }

    def _row(self, name: str, teaching: Sequence[str], ctx: ServerContext) -> tuple[int, list[float]]:
        """A prototype's place, and its row of lambda: the entries of those that teach."""
        place = ctx.client_architectures.index(name)
        if self.options.lambdas is None:
            return place, [1 / len(teaching)] * len(teaching)
        row = dict(zip(ctx.client_architectures, self.options.lambdas[place], strict=True))
        return place, [row[teacher] for teacher in teaching]


def merged(start: Tensor, results: Sequence[Tensor], row: Sequence[float]) -> Tensor:
    """w_m + sum_j lambda_j (w_m^j - w_m), [P_m]; one teacher's result itself where lambda is its alone.

    Args:
        start: [P_m], w_m.
        results: one [P_m] for each teacher.
        row: lambda, one for each teacher.
    """
    if sorted(row) == [0.0] * (len(row) - 1) + [1.0]:
        return results[row.index(1.0)]
    vectors = torch.stack([result.to(torch.float64) - start for result in results])
    added = (torch.tensor(row, dtype=torch.float64)[:, None] * vectors).sum(0)
    return (start + added).to(start.dtype)


def _names(prototypes: int) -> list[str]:
    return ["global"] if prototypes == 1 else [f"prototype_{place + 1}" for place in range(prototypes)]
