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

ACA is evaluated as `global`, as the average of a round's clients is in all methods. Departures of the
authors' code from the paper are options; `released: true` sets them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    FlatModule,
    LocalRecipe,
    Message,
    OneExchange,
    PixelScale,
    RecipeError,
    Replies,
    Reply,
    Samples,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.data_free.imitation import (
    GeneratorState,
    Imagined,
    ImitationOptions,
    drawn_samples,
    generator_loss,
    imagine,
)
from rayfed_kd.toolbox.distillation import BATCHNORM, BatchNormMode, normalising
from rayfed_kd.toolbox.generation import noise
from rayfed_kd.toolbox.layers import check_features
from rayfed_kd.toolbox.local_training import (
    Loss,
    Models,
    OwnBatch,
    Phase,
    Tensors,
    equal_steps,
    label_loss,
    train_phases,
)
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
    batchnorm: BatchNormMode = Field("keep", description=BATCHNORM)
    released: bool = Field(False, description="the released code's form of every option not given")

    @model_validator(mode="before")
    @classmethod
    def _released_forms(cls, raw: Any) -> Any:
        return {**RELEASED, **raw} if isinstance(raw, Mapping) and raw.get("released") is True else raw


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


class FedKF(OneExchange[ServerState, GeneratorState], plain_training=True):
    """Knowledge fusion: the paper's T1 (OCA) and T2 (local distillation on generated samples)."""

    options: Options
    summary = "data-free distillation at the clients from the average of all clients"
    paper = "Zhou et al. 2023, arXiv 2207.11447"
    server_keeps = "ACA, OCA, all clients' latest models"
    client_keeps = "its generator and the generator's Adam"
    down = {"student": "weights", "teacher": "weights"}
    up = {"student": "weights"}
    evaluates = ("global", "oca")

    def architectures(self) -> Mapping[str, Architecture]:
        return {"generator": self.options.generator.architecture()}

    @property
    def whole_epochs(self) -> bool:
        return self.options.steps_per_epoch is not None

    def check(self, ctx: ServerContext) -> None:
        check_features(ctx)
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
        self, client: GeneratorState, message: Message, ctx: ClientContext
    ) -> tuple[GeneratorState, Reply]:
        """On each batch, step theta_k on L_G and the student on L; both use one x^, p^ and f^."""
        student = ctx.model(message["student"])
        optimizer = Optimizer(ctx.local.optimizer, student)
        drawn = ctx.local_batches(int(message["steps"]) * ctx.passes or None)  # 0 stands for E passes
        if ctx.round <= self.options.warmup_rounds:
            phase = Phase(label_loss, [optimizer])
            train_phases({"student": student}, [phase], ((batch, {}) for batch in drawn), ctx)
            return client, Reply(student=student.vector(), samples=ctx.num_samples)
        generator = ctx.model(client.generator, "generator")
        adam = Optimizer(self.options.generator.optimizer, generator, client.moments)

        def batches() -> Iterator[OwnBatch]:
            for batch in drawn:
                yield batch, {"noise": noise(len(batch.indices), generator, ctx)}

        learning = [Phase(self.imitate, [adam]), Phase(self.distil, [optimizer])]
        if self.options.order == "student_first":
            learning.reverse()
        models = {"student": student, "teacher": self._teacher(message, ctx), "generator": generator}
        train_phases(models, [Phase(self.look, []), *learning], batches(), ctx, extras=ctx.scale._asdict())
        state = GeneratorState(generator.vector(), adam.state())
        return state, Reply(student=student.vector(), samples=ctx.num_samples)

    def look(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE(b), and x^ with the teacher's p^ and f^, which both steps use; nothing is minimised yet."""
        hard = cross_entropy(models["student"](batch["images"]), batch["labels"], extras)
        imagined = imagine(models["generator"], models["teacher"], batch["noise"], PixelScale.of(extras))
        handed_on = {"hard": hard, "x": imagined.images, "f": imagined.features, "p": imagined.logits}
        return Loss(hard, {"ce": hard}, handed_on)

    def imitate(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L_G, the generator's step."""
        with normalising(student := models["student"], self.options.batchnorm):
            return generator_loss(Imagined(batch["x"], batch["f"], batch["p"]), student, self.options)

    def distil(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """L, the student's step; x^ and p^ are from before the generator's."""
        if not self.options.gamma:
            return Loss(batch["hard"])  # nothing is added to CE: the student is FedAvg's to the bit
        with normalising(models["student"], self.options.batchnorm):
            logits = models["student"](batch["x"].detach())
        kl = distillation(batch["p"].detach(), logits)
        return Loss(batch["hard"] + self.options.gamma * kl, {"kl": kl})

    def absorb(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """ACA: the cohort's mean by n_k; OCA: the mean over all slots, unseen ones as w^0 or left out."""
        aca = replies.aggregated("student", replies.numbers("samples"), server.aca)
        slots = server.slots.after(replies, "student", replies.numbers("samples"))
        unseen_samples = 0.0 if self.options.unseen_slots == "ignore" else sum(ctx.sizes) - slots.weight
        return ServerState(aca, slots.mean(server.initial, unseen_samples), slots, server.initial)

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        return {"global": server.aca, "oca": server.oca}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        if ctx.round <= self.options.warmup_rounds:
            return {}
        replies = cohort.broadcast(self.draw_samples, self.dispatch(server, ctx))
        images, labels = (torch.cat(list(replies.vectors(name))) for name in ("images", "labels"))
        return {"samples": Samples(images, labels)}

    def draw_samples(
        self, client: GeneratorState, message: Message, ctx: ClientContext
    ) -> tuple[GeneratorState, Reply]:
        """A batch of the client's generated images with the classes that the teacher predicts."""
        images, labels = drawn_samples(client, self._teacher(message, ctx), ctx)
        return client, Reply(images=images, labels=labels)

    def _teacher(self, message: Message, ctx: ClientContext) -> FlatModule:
        return ctx.frozen_model(message["teacher" if "teacher" in message else "student"])

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        # A number of batches may hold less than E passes: the clock charges what was drawn.
        return super().least_samples(num_samples, local) if self.options.steps_per_epoch is None else 0

    def _steps(self, ctx: ServerContext) -> int:
        """Steps per local epoch; 0 stands for one pass."""
        wanted = self.options.steps_per_epoch
        return equal_steps(ctx.sizes, ctx.local.batch_size) if wanted == "equal" else wanted or 0
