"""FedD2S: knowledge of layers travels both ways, and clients drop the deepest layers as they take part.

Atapour et al. 2024, arXiv 2402.10846, Algorithm 1. Layers 1 to L; theta_-l are layers 1 to l, the head
theta_+l those above (eq. 8 prints l to L, which H_l does not fit). H_l is the output of layer l.

    l = max(l_min, L - floor((Z - 1) / Z0)), Z a client's participations          (eq. 6, and l_min)
    up   H_1, H_l, Y of all local training samples                 4 |H_1| + 4 |H_l| + 8 bytes a sample
    server, for every client a copy theta^{g,n} of theta^g, for every batch:
        step on J = tau^2 KL(theta^g_+l(H_l), theta^{g,n}_+1(H_1))               (eq. 9; theta^g frozen)
        step on Q = CE(theta^{g,n}_+1(H_1), Y)                                   (eq. 10)
    theta^g = mean of the copies                                                 (eq. 11)
    down t = theta^g_+1(H_1), and the head theta^g_+l              4 C bytes a sample, 4 P_+l
    client, for every batch:
        step on J = tau^2 KL(t, theta^g_+l(theta_-l(x))) over its layers 1 to l  (eq. 12)
        step on Q = CE(theta(x), y) over its whole model                         (eq. 13)

A client's model is never overwritten. Readings: t travels as logits, and so does the head: the paper's v as
plain numbers could carry no gradient. Samples go in the client's order, so that their numbers need not
travel; at l = 1 H_1 goes once. J and Q share a model's optimiser (the recipe's, afresh each round); a step on
J leaves layers that have no part in it, and their moments, as they are. Layer 1 of theta^g is never used.
KL(teacher, student), where the paper prints the student first. By squared error (Table 3) H_l is compared
with layer l of theta^g on H_1, on both sides. FedD2S* of Fig. 5 is read as `at_once`: layers above l_min
never take part. H_1 is of the stored images, also where training augments. `mechanism: none`: stand-alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    ClientContext,
    Cohort,
    Context,
    Drawn,
    FlatModule,
    Message,
    Method,
    RecipeError,
    Reply,
    ServerContext,
    Unaligned,
    weighted_mean,
)
from rayfed_kd.toolbox.layers import DroppingOptions, Layers, between, from_, up_to
from rayfed_kd.toolbox.local_training import (
    Loss,
    Models,
    Phase,
    Tensors,
    label_loss,
    own_batches,
    train_on_labels,
    train_phases,
)
from rayfed_kd.toolbox.losses import Direction, cross_entropy, directed_divergence
from rayfed_kd.toolbox.optimizers import Optimizer, minimise
from rayfed_kd.toolbox.own_models import OwnModels


class Options(DroppingOptions):
    """FedD2S' options; the defaults are the paper's for alpha 0.1."""

    passes: int | None = Field(
        None, ge=1, description="passes of (J, Q) on either side; null: half of local.epochs, rounded up"
    )
    tau: float = Field(1.0, gt=0, description="temperature of J, which is times tau^2")
    kl_direction: Direction = Field(
        "teacher_student", description="KL(teacher, student), or the arguments as printed in eq. 9 and 12"
    )
    mechanism: Literal["head", "mse", "none"] = Field(
        "head", description="J through head models, by squared error of layer outputs (Table 3), or no J"
    )
    warmup_epochs: int = Field(
        0, ge=0, description="epochs of cross entropy before a client's first exchange"
    )


@dataclass(frozen=True)
class Imitation:
    """A client's J: of the method's options, with l layers, comparing the outputs of layer l or L."""

    method: FedD2S
    layer: int
    compared: int

    def of_batch(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """J through the frozen head on the student's layers 1 to l (eq. 12)."""
        hidden = up_to(self.layer, models["student"], batch["images"])
        output = between(self.layer, self.compared, models["head"], hidden)
        loss = self.method.difference(batch["knowledge"], output)
        return Loss(loss, {"imitation": loss})


class FedD2S(OwnModels, Method[Tensor, Tensor]):
    """The server's state is theta^g, a client's its own model."""

    options: Options
    summary = "distillation of layer outputs to the server and back; clients drop layers, deepest first"
    paper = "Atapour et al. 2024, arXiv 2402.10846"
    group_training = "all local training, of clients that share as many layers"
    label_options = True
    server_keeps = "the global model"
    down = {"knowledge": "logits", "features": "features", "head": "weights"}
    up = {"first": Unaligned("features"), "deep": Unaligned("features"), "labels": "labels"}
    whole_epochs = True

    def check(self, ctx: ServerContext) -> None:
        layers = Layers(ctx.frozen_model(ctx.initial_vector()))
        self.options.shared(1, layers)
        if layers.names[0] in self.options.dropping:
            raise RecipeError(f"{layers.names[0]} cannot be dropped: its output travels", "method.dropping")
        if (rates := ctx.local.lr_schedule) and (rates.epochs or rates.steps):
            raise RecipeError("layers make different numbers of steps; expected rounds", "local.lr_schedule")

    def init_server(self, ctx: ServerContext) -> Tensor:
        return ctx.initial_vector()

    def run_round(self, server: Tensor, cohort: Cohort, ctx: ServerContext) -> Tensor:
        """C2S: a copy of theta^g learns from each client; their mean is theta^g (eq. 11); then S2C."""
        replies = cohort.broadcast(self.extract, Message())
        before, copy = ctx.frozen_model(server), ctx.model(server)
        copies = []
        for reply in replies:
            copy.load(server)  # one module serves all copies, one after the other
            self._teach(copy, before, reply, ctx)
            copies.append(copy.vector().cpu())
        server = weighted_mean(copies, [1.0] * len(copies))  # eq. 11
        after = ctx.frozen_model(server)
        cohort.scatter(self.learn, {r.client: self._knowledge(after, r, ctx) for r in replies})
        return server

    def extract(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """H_1, H_l and Y of the client's training samples, in their order."""
        # Not by its participation: what it learned in one that was too late is given up.
        if self.options.warmup_epochs and torch.equal(client, ctx.initial_vector()):
            student = ctx.model(client)
            train_on_labels(student, ctx, range(self.options.warmup_epochs))
            client = student.vector()
        model = ctx.frozen_model(client)
        layers = Layers(model)
        layer = self.options.shared(ctx.participation, layers)
        first, deep, labels = [], [], []
        with torch.no_grad():
            for images, targets in ctx.samples():
                first.append(up_to(1, model, images))
                deep.append(between(1, layer, model, first[-1]))
                labels.append(targets)
        parts = {"first": torch.cat(first), "labels": torch.cat(labels)}
        if layer > 1:
            parts["deep"] = torch.cat(deep)
        return client, Reply(**parts, layer=layer)

    def learn(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """S2C: the global knowledge into layers 1 to l, the labels into the whole model."""
        student = ctx.model(client)
        layers = Layers(student)
        layer = self.options.shared(ctx.participation, layers)
        head = student  # whose layers above l are the client's own
        if "head" in message:
            head = ctx.frozen_model(layers.with_rest(client, layer, message["head"]))
        lower, upper = _optimizers(student, layers, 0, layer, ctx)
        phases = [Phase(label_loss, [lower, upper])]  # eq. 13
        if self.options.mechanism != "none":
            imitation = Imitation(self, layer, self._compared(layer, layers))
            phases.insert(0, Phase(imitation.of_batch, [lower]))

        def further(drawn: Drawn) -> Tensors:
            return {} if len(phases) == 1 else {"knowledge": message[self._part][drawn.numbers]}

        batches = own_batches(ctx, range(self._passes(ctx)), further)
        train_phases({"student": student, "head": head}, phases, batches, ctx)
        return student.vector(), Reply()

    def _teach(self, copy: FlatModule, before: FlatModule, reply: Reply, ctx: ServerContext) -> None:
        """C2S: one client's knowledge, then its labels, into its copy of the global model."""
        layers, layer = Layers(copy), int(reply["layer"])
        compared = self._compared(layer, layers)
        first, labels = reply["first"].to(ctx.device), reply["labels"].to(ctx.device)
        deep = reply["deep"].to(ctx.device) if "deep" in reply else first
        lower, upper = _optimizers(copy, layers, 1, compared, ctx)
        stream = ctx.stream(f"order of client {reply.client}")
        for _ in range(self._passes(ctx)):
            order = torch.randperm(len(labels), generator=stream, device=ctx.device)
            for chosen in ctx.in_batches(order):
                if self.options.mechanism != "none" and compared > 1:  # at 1 both sides are H_1
                    with torch.no_grad():
                        target = between(layer, compared, before, deep[chosen])
                    loss = self.difference(target, between(1, compared, copy, first[chosen]))  # eq. 9
                    ctx.log(server_imitation=loss)
                    lower.minimise(loss)
                hard = cross_entropy(from_(1, copy, first[chosen]), labels[chosen])  # eq. 10
                ctx.log(server_ce=hard)
                minimise(hard, lower, upper)

    def _knowledge(self, after: FlatModule, reply: Reply, ctx: ServerContext) -> Message:
        """What the new global model says of a client's samples, and the head that the client needs."""
        if self.options.mechanism == "none":
            return Message()
        layers, layer = Layers(after), int(reply["layer"])
        compared = self._compared(layer, layers)
        with torch.no_grad():
            chunks = torch.split(reply["first"].to(ctx.device), ctx.local.batch_size)
            outputs = torch.cat([between(1, compared, after, chunk) for chunk in chunks])
        parts = {self._part: outputs}
        if layer < compared:
            parts["head"] = layers.rest(after.vector(), layer)
        return Message(**parts)

    @property
    def _part(self) -> str:
        return "features" if self.options.mechanism == "mse" else "knowledge"

    def _compared(self, layer: int, layers: Layers) -> int:
        """After which layer both sides are compared: behind a head model, or where the knowledge is."""
        return layer if self.options.mechanism == "mse" else len(layers)

    def difference(self, teacher: Tensor, student: Tensor) -> Tensor:
        """J of a batch; gradient reaches the student alone."""
        tau = self.options.tau
        if self.options.mechanism == "mse":
            return F.mse_loss(student, teacher)
        return tau**2 * directed_divergence(teacher, student, tau, self.options.kl_direction)

    def _passes(self, ctx: Context) -> int:
        return math.ceil((ctx.local.epochs or 0) / 2) if self.options.passes is None else self.options.passes


def _optimizers(
    model: FlatModule, layers: Layers, first: int, last: int, ctx: Context
) -> tuple[Optimizer, Optimizer]:
    """The model's optimiser in two parts: layers `first` + 1 to `last`, which J reaches, and those above."""
    recipe = ctx.local.optimizer
    return (
        Optimizer(recipe, model, part=layers.parameters(first, last)),
        Optimizer(recipe, model, part=layers.parameters(last, len(layers))),
    )
