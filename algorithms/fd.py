"""FD, or FedDistill: clients of any architecture exchange the mean output of each label.

Jeong, Oh, Kim, Park, Bennis, Kim 2018, Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data, arXiv 1811.11479, section 2, Algorithm 1.

    F           softmax of the model's logits, called a logit vector there
    Fbar_{k,c}  mean of F over the samples of label c that client k trained on
    Fhat_{k,c}  mean of Fbar_{j,c} over the other clients j that have label c
    L           CE + gamma H(Fhat_{k,y}, F),  H(q, p) = -sum q log p
    up          Fbar_{k,c}, c and n_{k,c} of each of its C_k labels    4 C_k (C + 2) bytes a client
    down        Fhat_{k,c} and c of each label that others have        4 C (C + 1) bytes a client, or less

A client keeps its model. Readings: a label that no other client has gives no term; the mean is over as many
as have it (the paper divides by all others); Fbar is over all that the client saw as its weights changed
(`means`), and its latest counts. HtFLlib has raw logits for F. gamma = 0, or one client: Stand-Alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    ClientContext,
    Cohort,
    FlatModule,
    Message,
    Method,
    MethodOptions,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.by_class.means import PerClass, class_means, mean_rows, spread
from rayfed_kd.toolbox.local_training import (
    Loss,
    Models,
    Tensors,
    label_options,
    train_batches,
    train_local_epochs,
)
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.own_models import OwnModels


class Options(MethodOptions):
    """FD's options; the paper gives no gamma."""

    gamma: float = Field(1.0, ge=0, description="weight of the distillation term")
    exclude_self: bool = Field(True, description="a client's targets are of the others alone")
    means: Literal["training", "last_epoch", "after"] = Field(
        "training",
        description="whose outputs: of all training, of its last epoch, or of the trained model in eval mode",
    )


@dataclass(frozen=True)
class ServerState:
    """latest: client -> its Fbar_{k,c} of the last round in which it took part."""

    latest: Mapping[int, PerClass]


class FD(OwnModels, Method[ServerState, Tensor]):
    """Federated distillation of mean outputs by label."""

    options: Options
    summary = "clients of any architecture distil from the others' mean output of each label"
    paper = "Jeong et al. 2018, arXiv 1811.11479"
    group_training = "all local training with means: after"
    label_options = True
    server_keeps = "all clients' latest mean outputs by label"
    down = {"targets": "logits", "classes": "labels"}
    up = {"outputs": Unaligned("logits"), "classes": "labels", "counts": "counts"}
    heterogeneous = True

    @property
    def whole_epochs(self) -> bool:
        return self.options.means != "after"

    def init_server(self, ctx: ServerContext) -> ServerState:
        """No outputs: the first round has no term."""
        return ServerState({})

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Every client its own targets down, and its mean outputs up."""
        exclude = self.options.exclude_self
        targets = means_of_others(server.latest, cohort.clients, ctx.classes, exclude_self=exclude)
        parts = {k: {"targets": t.values, "classes": t.classes} for k, t in targets.items() if len(t.classes)}
        replies = cohort.scatter(self.update, {k: Message(**parts.get(k, {})) for k in cohort.clients})
        arrived = {r.client: PerClass(r["classes"], r["outputs"], r["counts"]) for r in replies}
        return ServerState({**server.latest, **arrived})

    def update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's own model on L, without the term where there are no targets; send Fbar."""
        student, extras = ctx.model(client), {}
        if self.options.gamma and "targets" in message:
            rows, present = spread(message["classes"], message["targets"], ctx.classes)
            extras = {"rows": rows, "present": present}
        if self.options.means == "after":
            train_batches({"student": student}, self.loss, ctx, extras=extras)
            means = mean_rows(ctx.frozen_model(student.vector()), probabilities, ctx)
        else:
            means = self._trained(student, extras, ctx)
        return student.vector(), Reply(outputs=means.values, classes=means.classes, counts=means.counts)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L; hands on F."""
        labels, logits = batch["labels"], models["student"](batch["images"])
        hard, handed_on = cross_entropy(logits, labels, extras), {"outputs": logits.detach().softmax(1)}
        if "rows" not in extras:
            return Loss(hard, {"ce": hard}, handed_on)
        soft = label_distillation(logits, labels, extras["rows"], extras["present"])
        return Loss(hard + self.options.gamma * soft, {"ce": hard, "kd": soft}, handed_on)

    def _trained(self, student: FlatModule, extras: Tensors, ctx: ClientContext) -> PerClass:
        """Train, and average by label what the model says of the samples as it sees them."""
        seen, optimizer = list[tuple[Tensor, Tensor]](), Optimizer(ctx.local.optimizer, student)
        all_extras = {**extras, **label_options(ctx)}

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            step = self.loss({"student": student}, {"images": images, "labels": labels}, all_extras)
            ctx.log(**step.logged)
            seen.append((step.handed_on["outputs"], labels))
            return step.value

        *earlier, last = range(ctx.passes)
        train_local_epochs(student, loss, ctx, earlier, optimizer)
        if self.options.means == "last_epoch":
            seen.clear()
        train_local_epochs(student, loss, ctx, [last], optimizer)
        return class_means(seen, ctx.classes)


def means_of_others(
    latest: Mapping[int, PerClass], clients: Iterable[int], num_classes: int, *, exclude_self: bool = True
) -> dict[int, PerClass]:
    """For each of some clients the plain mean of all others' vectors, class by class.

    Args:
        latest: client -> its vectors of length C.
        clients: whom the means are for.
        num_classes: C.
        exclude_self: False: of all clients' vectors, its own as well.
    Returns: client -> means, of the classes that another client has; counts are the numbers of such clients.
    """
    # In float64, so that taking a client's own from the sum leaves the sum of the others.
    sums, holders = torch.zeros(num_classes, num_classes, dtype=torch.float64), torch.zeros(num_classes)
    for client in sorted(latest):
        places = latest[client].classes.long()
        sums[places] += latest[client].values
        holders[places] += 1
    means = {}
    for client in clients:
        others, number = sums.clone(), holders.clone()
        if exclude_self and client in latest:
            places = latest[client].classes.long()
            others[places] -= latest[client].values
            number[places] -= 1
        known = number.nonzero()[:, 0]
        values = (others[known] / number[known, None]).float()
        means[client] = PerClass(known.int(), values, number[known])
    return means


def label_distillation(logits: Tensor, labels: Tensor, rows: Tensor, present: Tensor) -> Tensor:
    """H(q_y, softmax(logits)), mean over the batch; 0 for samples whose label has no target.

    Args:
        logits: [batch, C]; gradient passes.
        labels: [batch] int64, y.
        rows: [C, C], a target distribution q a label; read only where there is one.
        present: [C] bool, whether there is one.
    """
    entropies = -(rows[labels] * logits.log_softmax(1)).sum(1)
    return torch.where(present[labels], entropies, 0.0).mean()


def probabilities(model: FlatModule, images: Tensor) -> Tensor:
    """The softmax of a model's logits, [batch, C]."""
    return model(images).softmax(1)
