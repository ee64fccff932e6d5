"""Data-free distillation alone: a teacher trained on all data, a student on generated samples only.

Zhou et al. 2023, arXiv 2207.11447, section IV-D and Table IV: shows what FedKF's generator is worth
without any federation. One client holds all data and trains the teacher for `teacher_rounds`; then the
server trains generator and student, and no real image is read again.

    L_G = L_IE + lambda1 L_OH + lambda2 L_A      (eq. 2 to 5; Adam)
    L   = KL(p^, student(x^))                    (eq. 6; the recipe's optimiser and batch size)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    Message,
    Method,
    RecipeError,
    Reply,
    Samples,
    ServerContext,
    Shown,
)
from rayfed_kd.toolbox.data_free.imitation import (
    GeneratorState,
    ImitationOptions,
    drawn_samples,
    generator_loss,
    imagine,
)
from rayfed_kd.toolbox.generation import noise
from rayfed_kd.toolbox.layers import check_features
from rayfed_kd.toolbox.local_training import train_on_labels
from rayfed_kd.toolbox.losses import distillation
from rayfed_kd.toolbox.optimizers import Optimizer


class Options(ImitationOptions):
    """Data-free distillation's options."""

    teacher_rounds: int = Field(10, ge=0, description="first rounds, in which the teacher is trained")
    steps: int = Field(100, ge=1, description="steps of generator and student in each later round")


@dataclass(frozen=True)
class ServerState:
    """Both models and what trains the second.

    Attributes:
        teacher, student: [P].
        momentum: the student's optimiser's state.
        imitator: the generator.
    """

    teacher: Tensor
    student: Tensor
    momentum: Mapping[str, Tensor]
    imitator: GeneratorState


class DataFree(Method[ServerState, None]):
    """FedKF's Table IV."""

    options: Options
    summary = "a student that sees generated samples only, from a centrally trained teacher"
    paper = "Zhou et al. 2023, arXiv 2207.11447, Table IV"
    server_keeps = "teacher, student, generator, the optimisers of the last two"
    client_keeps = "nothing"
    down = {"teacher": "weights"}
    up = {"teacher": "weights"}
    evaluates = ("teacher", "student")

    def architectures(self) -> Mapping[str, Architecture]:
        """The generator of images."""
        return {"generator": self.options.generator.architecture()}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless one client has all data, its features are known, and a student learns."""
        check_features(ctx)
        if ctx.num_clients != 1:
            raise RecipeError(f"partition.clients = {ctx.num_clients}: datafree trains its teacher on one, 1")
        if self.options.teacher_rounds >= ctx.rounds:
            what = f"method.teacher_rounds = {self.options.teacher_rounds}: the student learns after them"
            raise RecipeError(f"{what}; expected fewer than the {ctx.rounds} rounds of the run")

    def init_server(self, ctx: ServerContext) -> ServerState:
        """Teacher and student from the same initial vector, the generator without Adam moments."""
        generator = GeneratorState(ctx.initial_vector("generator"), {})
        return ServerState(ctx.initial_vector(), ctx.initial_vector(), {}, generator)

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Train the teacher at the client; after `teacher_rounds`, generator and student at the server."""
        if ctx.round <= self.options.teacher_rounds:
            (reply,) = cohort.broadcast(self.train_teacher, Message(teacher=server.teacher))
            return replace(server, teacher=reply["teacher"])
        return self._distil(server, ctx)

    def train_teacher(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """The one client's epochs of cross entropy."""
        teacher = ctx.model(message["teacher"])
        train_on_labels(teacher, ctx)
        return None, Reply(teacher=teacher.vector())

    def evaluated(self, server: ServerState) -> Mapping[str, Tensor]:
        """The teacher and the student, to compare what distillation loses."""
        return {"teacher": server.teacher, "student": server.student}

    def shown(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """Generated images with the classes that the teacher predicts; none while it still trains."""
        if ctx.round <= self.options.teacher_rounds:
            return {}
        images, labels = drawn_samples(server.imitator, ctx.frozen_model(server.teacher), ctx)
        return {"samples": Samples(images.cpu(), labels.cpu())}

    def _distil(self, server: ServerState, ctx: ServerContext) -> ServerState:
        student = ctx.model(server.student)
        teacher = ctx.frozen_model(server.teacher)
        generator = ctx.model(server.imitator.generator, "generator")
        imitating = Optimizer(self.options.generator.optimizer, generator, server.imitator.moments)
        learning = Optimizer(ctx.local.optimizer, student, server.momentum)
        for _ in range(self.options.steps):
            imagined = imagine(generator, teacher, noise(ctx.local.batch_size, generator, ctx), ctx)
            loss = generator_loss(imagined, student, self.options)
            ctx.log(**loss.logged)
            imitating.minimise(loss.value)
            # As in FedKF, the student sees the images from before the generator's step.
            kl = distillation(imagined.logits.detach(), student(imagined.images.detach()))
            ctx.log(kl=kl)
            learning.minimise(kl)
        return replace(
            server,
            student=student.vector().cpu(),
            momentum=learning.state(),
            imitator=GeneratorState(generator.vector(), imitating.state()),
        )
