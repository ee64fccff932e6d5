"""One exchange: clients send trained models of any architecture, and the server distils them into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    Declaration,
    Message,
    OneExchange,
    RecipeError,
    Replies,
    Reply,
    Samples,
    ServerContext,
    Shown,
    Unaligned,
)
from rayfed_kd.toolbox.data_free.synthesis import ImagePool, Teachers
from rayfed_kd.toolbox.local_training import train_on_labels


@dataclass(frozen=True)
class OneShotState:
    """What the server keeps.

    Attributes:
        student: [P], of the recipe's model.
        version: how many exchanges made it.
        images, labels: some synthesised images, [n, c, h, w] in [0, 1], and the classes asked for.
    """

    student: Tensor
    version: int
    images: Tensor
    labels: Tensor


class OneShot(OneExchange[OneShotState, None]):
    """Clients train on their labels once; a method on it defines `distil`, the server's part.

    With several rounds the student is what clients start from in the next one, which needs one architecture.
    Nothing goes down in the first: the initial models are the run's seed's.
    """

    options: Any
    server_keeps: ClassVar[str] = "the student, some synthesised images to look at"
    client_keeps: ClassVar[str] = "nothing"
    down: ClassVar[Declaration] = {"student": "weights"}
    up: ClassVar[Declaration] = {"trained": Unaligned("weights")}
    heterogeneous: ClassVar[bool] = True
    evaluates: ClassVar[Sequence[str]] = ("student",)

    def architectures(self) -> Mapping[str, Architecture]:
        """The generator of images; it never leaves the server."""
        return {"generator": self.options.generator.architecture()}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError for several rounds with clients that cannot start from the student."""
        if ctx.rounds > 1 and ctx.client_architectures != ("model",):
            raise RecipeError(
                f"rounds = {ctx.rounds}: clients with client_models cannot start from the server's student; "
                "expected 1, as this method has one exchange, or no client_models"
            )

    def init_server(self, ctx: ServerContext) -> OneShotState:
        """The initial student."""
        nothing = ImagePool(ctx).newest()
        return OneShotState(ctx.initial_vector(), 0, nothing.images, nothing.labels)

    def dispatch(self, server: OneShotState, ctx: ServerContext) -> Message:
        """Send the student, if an exchange has made it."""
        return Message(student=server.student) if server.version else Message()

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train the initial model of the client's architecture, or the student, and send it."""
        trained = ctx.model(message["student"] if "student" in message else ctx.initial_vector())
        train_on_labels(trained, ctx)
        return None, Reply(trained=trained.vector())

    def absorb(self, server: OneShotState, replies: Replies, ctx: ServerContext) -> OneShotState:
        """Distil the clients' models into the student on synthesised images."""
        if not len(replies):
            return server
        models = [ctx.frozen_model(reply["trained"], ctx.client_models[reply.client]) for reply in replies]
        student = ctx.model(server.student)
        batch = self.distil(student, Teachers(models), ctx).newest()
        return OneShotState(student.vector().cpu(), server.version + 1, batch.images, batch.labels)

    def distil(self, student: FlatModule, teachers: Teachers, ctx: ServerContext) -> ImagePool:
        """Train the student, in train mode; gives the synthesised images."""
        raise TypeError(f"{type(self).__name__} must define distil(): see toolbox/data_free/one_shot.py")

    def evaluated(self, server: OneShotState) -> Mapping[str, Tensor]:
        """The student."""
        return {"student": server.student}

    def shown(self, server: OneShotState, cohort: Cohort, ctx: ServerContext) -> Mapping[str, Shown]:
        """Synthesised images with the classes that were asked for."""
        return {"samples": Samples(server.images, server.labels)} if len(server.labels) else {}
