"""Small models at the clients, the large rest at the server, and logits both ways: FedGKT and FedICT.

A client's model is cut behind one of its layers. Those before it are its extractor, the others its small
classifier; the server's model takes the extractor's output.

    client  E epochs of CE + terms(server's logits, own) on its samples; without such logits yet, of CE
    up      features 4 n_k H and own logits 4 n_k C bytes; the first time labels, 8 n_k
    server  epochs over the clients, and the samples of each: CE + terms(client's logits, own)
    down    the server's logits, 4 n_k C bytes, which the client keeps for its next round

CE reaches the whole of the model that is trained, on either side; a teacher gets no gradient, and the
server's gives the client's extractor none. Samples go in the client's order, so that each has its own
teacher however batches are drawn, and no ids travel. Whoever sends features or logits has its model in eval
mode, and sees the stored images, not augmented. All clients start from the same initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.errors import RecipeError
from rayfed_kd.models.base import layer_shape
from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import (
    PERSONAL,
    Architecture,
    ClientContext,
    Cohort,
    Completing,
    Context,
    Declaration,
    Evaluable,
    Message,
    Method,
    MethodOptions,
    Predictor,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.protocol.method import missing
from rayfed_kd.recipe.sample_shapes import shown_sides
from rayfed_kd.recipe.sections.local_training import OptimizerRecipe
from rayfed_kd.toolbox.layers import Layers, from_, up_to
from rayfed_kd.toolbox.local_training import Loss, Models, Tensors, train_batches, train_on_labels
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Moments, Optimizer
from rayfed_kd.toolbox.own_models import OwnModels
from rayfed_kd.toolbox.server_models.larger_server import ServerModel

SERVER = "server"
# Parts of every reply; whatever else a client sends comes once and is kept in `told`.
EVERY_TIME = ("features", "logits")


class TransferOptions(MethodOptions):
    """Where clients' models are cut, and how the server trains."""

    cut: str = Field("C1", description="the last layer of the clients' extractors: its output travels")
    server: ServerModel = ServerModel()
    temperature: float = Field(3.0, gt=0, description="T of every distillation term, which is times T^2")
    server_epochs: int = Field(20, ge=1, description="passes over the round's samples at the server")
    server_batch_size: int | None = Field(
        None, ge=1, description="samples a batch there; null: local.batch_size"
    )
    server_optimizer: OptimizerRecipe | None = Field(None, description="null: as local.optimizer")


@dataclass(frozen=True)
class ServerState:
    """What the server keeps.

    Attributes:
        model: [P_s], behind the cut.
        moments: of its optimiser.
        told: client -> what it sent once: its labels, [n_k], and the method's own, by name.
    """

    model: Tensor
    moments: Moments
    told: Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True)
class ClientState:
    """A client's model, [P_k], and the server's logits on its samples, [n_k, C]; None before the first."""

    model: Tensor
    knowledge: Tensor | None


Term = Callable[[Tensor, Tensor], Tensor]
Terms = Mapping[str, tuple[float, Term]]
"""Name in the tables -> its weight, and (teacher's logits, student's) -> scalar."""


class KnowledgeTransfer(OwnModels, Method[ServerState, ClientState]):
    """The exchange; a method says what beside cross entropy either side minimises."""

    options: TransferOptions
    down: ClassVar[Declaration] = {"knowledge": "logits"}
    up: ClassVar[Declaration] = {
        "features": Unaligned("features"),
        "logits": Unaligned("logits"),
        "labels": "labels",
    }
    server_keeps: ClassVar[str] = "its model and optimiser, clients' labels"
    client_keeps: ClassVar[str] = "its model, the server's logits on its samples"
    heterogeneous: ClassVar[bool] = True
    evaluates: ClassVar[Sequence[str]] = ("server", "personal")

    def client_extras(self, ctx: ClientContext) -> Tensors:
        """What `client_terms` need of a client."""
        return {}

    def client_terms(self, extras: Tensors) -> Terms:
        """What a client adds to cross entropy; the server is the teacher."""
        raise missing(self, "client_terms", "toolbox/server_models/split_learning.py")

    def server_terms(self, client: int, introductions: Mapping[int, Mapping[str, Tensor]]) -> Terms:
        """What the server adds to cross entropy on the samples of a client, which is the teacher."""
        raise missing(self, "server_terms", "toolbox/server_models/split_learning.py")

    def introduction(self, ctx: ClientContext) -> Mapping[str, Tensor]:
        """What a client sends once, beside its labels."""
        return {}

    def architectures(self) -> Mapping[str, Architecture]:
        """The server's model, by the name `server`: it takes the output of layer `cut`."""
        return {SERVER: self.options.server.architecture(cut=self.options.cut)}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless every client architecture gives the recipe model's shape at `cut`."""
        cut = self.options.cut
        taken = layer_shape(ctx.frozen_model(ctx.initial_vector()).module, cut, ctx.shape, "method.cut")
        for name in ctx.client_architectures:
            model = ctx.frozen_model(ctx.initial_vector(name), name)
            sides = layer_shape(model.module, cut, ctx.shape, f"method.cut, {name}")
            if sides != taken:
                raise RecipeError(
                    f"client_models: layer {cut} of {name} gives {shown_sides(sides)}; expected "
                    f"{shown_sides(taken)}, as the recipe's model, which the server's model takes"
                )

    def init_server(self, ctx: ServerContext) -> ServerState:
        """The server's initial model, without moments; no client's labels are known."""
        return ServerState(ctx.initial_vector(SERVER), {}, {})

    def init_client(self, ctx: ClientContext) -> ClientState:
        """The client's initial model, [P_k]; the server's logits come with the first round."""
        return ClientState(ctx.initial_vector(), None)

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """Clients train and show what they extract, the server learns from it, its logits go back."""
        # The server says whether it has a client's labels, so that clients keep no flag for it.
        messages = {k: Message(known=int(k in server.told)) for k in cohort.clients}
        replies = cohort.scatter(self.train, messages)
        server = self.taught(server, replies, ctx)
        model = ctx.frozen_model(server.model, SERVER)
        answers = {r.client: Message(knowledge=self._logits(model, r, ctx)) for r in replies}
        cohort.scatter(self.keep, answers)
        return server

    def train(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """A client's epochs, then features and logits of its samples, [n_k, ...] and [n_k, C]."""
        student = ctx.model(client.model)
        known = client.knowledge
        if known is None:
            train_on_labels(student, ctx)
        else:
            train_batches(
                {"student": student},
                self.loss,
                ctx,
                extras=self.client_extras(ctx),
                further=lambda drawn: {"teacher": known[drawn.numbers]},
            )
        trained = ClientState(student.vector(), known)
        return trained, self._shown(trained, ctx, known=bool(message["known"]))

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE and the client's terms."""
        logits = models["student"](batch["images"])
        return transfer_loss(logits, batch["labels"], batch["teacher"], self.client_terms(extras))

    def taught(self, server: ServerState, replies: Replies, ctx: ServerContext) -> ServerState:
        """The server's epochs on what its clients sent, one client after the other, in client order."""
        once = {r.client: {n: r[n] for n in r.parts if n not in EVERY_TIME} for r in replies}
        introductions = {**server.told, **{client: parts for client, parts in once.items() if parts}}
        model = ctx.model(server.model, SERVER)
        recipe = self.options.server_optimizer or ctx.local.optimizer
        optimizer = Optimizer(recipe, model, server.moments)
        # After `introductions` is complete: FedICT's d^S counts the clients that are new in this round.
        terms = {reply.client: self.server_terms(reply.client, introductions) for reply in replies}
        for _ in range(self.options.server_epochs):
            for reply in replies:
                labels = introductions[reply.client]["labels"].to(ctx.device)
                features, teacher = reply["features"].to(ctx.device), reply["logits"].to(ctx.device)
                # A stream for each client: its order does not depend on who else is in the cohort.
                stream = ctx.stream(f"order of client {reply.client}")
                order = torch.randperm(len(labels), generator=stream, device=ctx.device)
                for chosen in ctx.in_batches(order, self._batch_size(ctx)):
                    logits = model(features[chosen])
                    loss = transfer_loss(logits, labels[chosen], teacher[chosen], terms[reply.client])
                    ctx.log(**{f"server_{name}": value for name, value in loss.logged.items()})
                    optimizer.minimise(loss.value)
        moments = {name: value.cpu() for name, value in optimizer.state().items()}
        return ServerState(model.vector().cpu(), moments, introductions)

    def keep(self, client: ClientState, message: Message, ctx: ClientContext) -> tuple[ClientState, Reply]:
        """The server's logits, kept until the client trains again."""
        return replace(client, knowledge=message["knowledge"]), Reply()

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """By client: its extractor with the server's model behind it, and its small model."""
        return {SERVER: Completing(server.model, SERVER), "personal": PERSONAL}

    def composed(self, parts: Sequence[FlatModule], numbers: Tensor) -> Predictor:
        """Images through the client's layers up to `cut`, then through the server's model."""
        model, behind = parts
        cut = self._cut(model)
        return lambda images: behind(up_to(cut, model, images))

    def _shown(self, client: ClientState, ctx: ClientContext, *, known: bool) -> Reply:
        model = ctx.frozen_model(client.model)
        cut = self._cut(model)
        with torch.no_grad():
            shown = [(up_to(cut, model, images), labels) for images, labels in ctx.samples()]
            logits = torch.cat([from_(cut, model, features) for features, _ in shown])
        features, labels = (torch.cat(column) for column in zip(*shown, strict=True))
        once = {} if known else {"labels": labels, **self.introduction(ctx)}
        return Reply(features=features, logits=logits, **once)

    def _logits(self, model: FlatModule, reply: Reply, ctx: ServerContext) -> Tensor:
        """The server's logits on a client's samples, [n_k, C], after all its epochs."""
        chunks = torch.split(reply["features"].to(ctx.device), self._batch_size(ctx))
        with torch.no_grad():
            return torch.cat([model(chunk) for chunk in chunks])

    def _batch_size(self, ctx: Context) -> int:
        return self.options.server_batch_size or ctx.local.batch_size

    def _cut(self, model: FlatModule) -> int:
        """How many layers of a client's model are its extractor."""
        return Layers(model).names.index(self.options.cut) + 1


def transfer_loss(logits: Tensor, labels: Tensor, teacher: Tensor, terms: Terms) -> Loss:
    """CE plus the terms whose weight is not 0, each logged by its name.

    Args:
        logits: [batch, classes], the student's; gradient passes.
        labels: [batch] int64.
        teacher: [batch, classes], the other side's logits on the same samples.
        terms: what is added.
    """
    loss = cross_entropy(logits, labels)
    logged = {"ce": loss}
    for name, (weight, term) in terms.items():
        # A term of weight 0 is not computed: FedICT without its terms must give FedGKT's bits.
        if weight:
            logged[name] = term(teacher, logits)
            loss = loss + weight * logged[name]
    return Loss(loss, logged)
