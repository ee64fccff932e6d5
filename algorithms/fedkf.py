"""FedKF: clients distil from the average of all clients, on samples that they generate themselves.

Zhou et al. 2023, IEEE Internet of Things Journal, arXiv 2207.11447, Algorithm 1.

    student, ACA   w       active clients' average, what a client trains and returns
    teacher, OCA   w^      average of all K clients' latest models (their cache slots)
    generator      theta_k each client's own, kept between rounds with its Adam moments
    x^, p^, f^             generated images; the teacher's probabilities and features on them

    L_G = L_IE + lambda1 L_OH + lambda2 L_A               (eq. 2 to 5; Adam on theta_k)
    L   = CE(b) + gamma KL(p^, student(x^))               (eq. 6 to 8; the recipe's optimiser)

    down  ACA and OCA (FedKF-, `teacher: aca`: ACA alone)     8 P (4 P) bytes a client
    up    the student and the count n_k                        4 P bytes a client

Departures of the authors' code from the paper are options; `released: true` sets them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.protocol import (
    Architecture,
    Batch,
    ClientContext,
    Cohort,
    FlatModule,
    LocalRecipe,
    Message,
    OneExchange,
    RecipeError,
    Replies,
    Reply,
    Samples,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.data_free import GeneratorState, ImitationOptions, Imitator, drawn_samples
from rayfed_kd.toolbox.losses import cross_entropy, distillation
from rayfed_kd.toolbox.optimizers import Optimizer
from rayfed_kd.toolbox.slots import Slots

RELEASED: dict[str, Any] = {
    "entropy": "normalised",
    "unseen_slots": "ignore",
    "order": "student_first",
    "warmup_rounds": 1,
    "steps_per_epoch": "equal",
}


class Options(ImitationOptions):
    """FedKF's options; the defaults are the paper's."""

    gamma: float = Field(1.0, ge=0, description="weight of the distillation term (eq. 8)")
    teacher: Literal["oca", "aca"] = Field("oca", description="aca is FedKF-: one model is sent, as both")
    unseen_slots: Literal["initial", "ignore"] = Field(
        "initial", description="what clients not seen yet count in OCA: the initial model, or nothing"
    )
    order: Literal["generator_first", "student_first"] = Field(
        "generator_first", description="which of the two steps on a batch comes first"
    )
    warmup_rounds: int = Field(0, ge=0, description="first rounds on cross entropy alone, nothing generated")
    steps_per_epoch: Literal["equal"] | Annotated[int, Field(ge=1)] | None = Field(
        None, description="null: a pass; equal: floor(total / (K B)) for every client; or a number"
    )
    released: bool = Field(False, description="the released code's form of every option not given")

    @model_validator(mode="before")
    @classmethod
    def _released_forms(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and raw.get("released") is True:
            return {**RELEASED, **raw}
        return raw


@dataclass(frozen=True)
class ServerState:
    """Both averages and the slots behind the second.

    Attributes:
        aca: [P], active clients' average w.
        oca: [P], overall clients' average w^.
        slots: every seen client's latest vector.
        initial: [P], w^0, what a slot holds before its client was seen.
    """

    aca: Tensor
    oca: Tensor
    slots: Slots
    initial: Tensor


class FedKF(OneExchange[ServerState, GeneratorState]):
    """Knowledge fusion: the paper's T1 (OCA) and T2 (local distillation on generated samples)."""

    options: Options
    summary = "data-free distillation at the clients from the average of all clients"
    paper = "Zhou et al. 2023, arXiv 2207.11447"
    server_keeps = "ACA, OCA, all clients' latest models"
    client_keeps = "its generator and the generator's Adam"
    down = {"student": "weights", "teacher": "weights"}
    up = {"student": "weights"}

    def architectures(self) -> Mapping[str, Architecture]:
        return {"generator": self.options.generator.architecture()}

    def check(self, ctx: ServerContext) -> None:
        if self.options.steps_per_epoch == "equal" and equal_steps(ctx.sizes, ctx.local.batch_size) == 0:
            raise RecipeError(
                f"method.steps_per_epoch: equal gives floor({sum(ctx.sizes)} samples / ({ctx.num_clients} "
                f"clients x batch {ctx.local.batch_size})) = 0 steps; expected a smaller local.batch_size"
            )

    def init_server(self, ctx: ServerContext) -> ServerState:
        initial = ctx.initial_vector()
        return ServerState(initial, initial, Slots.empty(initial.numel()), initial)

    def init_client(self, ctx: ClientContext) -> GeneratorState:
        return GeneratorState(ctx.initial_vector("generator"), {})  # equal for all clients

    def dispatch(self, server: ServerState, ctx: ServerContext) -> Message:
        steps = self._steps(ctx)
        if self.options.teacher == "aca":
            return Message(student=server.aca, steps=steps)
        return Message(student=server.aca, teacher=server.oca, steps=steps)

    def client_update(
        self, client: GeneratorState | None, message: Message, ctx: ClientContext
    ) -> tuple[GeneratorState, Reply]:
        assert client is not None
        student = ctx.model(message["student"])
        optimizer = Optimizer(ctx.local.optimizer, student)
        imitator = None
        if ctx.round > self.options.warmup_rounds:
            imitator = Imitator(self.options, client, self._teacher(message, ctx), ctx)
        for images, labels in self._batches(int(message["steps"]), ctx):
            loss = cross_entropy(student(images), labels)
            ctx.log(ce=loss)
            if imitator is None:
                optimizer.minimise(loss)
                continue
            imagined = imitator.imagine(len(labels))
            if self.options.order == "generator_first":
                imitator.learn(imagined, student)
            if self.options.gamma:
                kl = distillation(imagined.logits.detach(), student(imagined.images.detach()))
                ctx.log(kl=kl)
                loss = loss + self.options.gamma * kl
            optimizer.minimise(loss)
            if self.options.order == "student_first":
                imitator.learn(imagined, student)
        state = client if imitator is None else imitator.state()
        return state, Reply(student=student.vector(), samples=ctx.num_samples)

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        aca = replies.aggregated("student", replies.numbers("samples"), server.aca)
        slots = server.slots.replaced({r.client: (r.ref("student"), r["samples"]) for r in replies})
        if self.options.unseen_slots == "ignore":
            return ServerState(aca, slots.mean(), slots, server.initial)
        oca = slots.mean(server.initial, sum(ctx.sizes) - slots.weight)
        return ServerState(aca, oca, slots, server.initial)

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        return {"aca": server.aca, "oca": server.oca}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        if ctx.round <= self.options.warmup_rounds:
            return {}
        replies = cohort.broadcast(self.draw_samples, self.dispatch(server, ctx))
        images, labels = (torch.cat(list(replies.vectors(name))) for name in ("images", "labels"))
        return {"samples": Samples(images, labels)}

    def draw_samples(
        self, client: GeneratorState | None, message: Message, ctx: ClientContext
    ) -> tuple[GeneratorState | None, Reply]:
        """A batch of the client's generated images with the classes that the teacher predicts."""
        assert client is not None
        images, labels = drawn_samples(client, self._teacher(message, ctx), ctx)
        return client, Reply(images=images, labels=labels)

    def _teacher(self, message: Message, ctx: ClientContext) -> FlatModule:
        return ctx.frozen_model(message["teacher" if "teacher" in message else "student"])

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        if self.options.steps_per_epoch is None:
            return super().least_samples(num_samples, local)
        return 0  # a number of batches, not of passes: known when they were drawn

    def _steps(self, ctx: ServerContext) -> int:
        """Steps per local epoch; 0 stands for one pass."""
        wanted = self.options.steps_per_epoch
        return equal_steps(ctx.sizes, ctx.local.batch_size) if wanted == "equal" else wanted or 0

    def _batches(self, steps: int, ctx: ClientContext) -> Iterator[Batch]:
        if steps:
            yield from islice(ctx.endless(), steps * ctx.local.epochs)
            return
        for epoch in range(ctx.local.epochs):
            yield from ctx.epoch(epoch)


def equal_steps(sizes: Sequence[int], batch_size: int) -> int:
    """The released code's steps per epoch, the same for every client: floor(sum n_k / (K B))."""
    return sum(sizes) // (len(sizes) * batch_size)
