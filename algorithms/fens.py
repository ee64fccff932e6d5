"""FENS: clients train once; an aggregator of all their models' logits learns by federated averaging.

Allouah, Dhasade, Guerraoui, Gupta, Kermarrec, Pinot, Pires, Sharma 2024, Revisiting Ensembling in One-Shot
Federated Learning, NeurIPS; released code sacs-epfl/fens.

    round 1    client: trains a model of its own, from an initial one of its own, without its proxy samples;
               sends it                                                                      up    4 P_k
    then       client: once gets all K models, keeps their logits z [K, C] of proxy samples  down  4 sum_k P_k
               client: an SGD step of f on the CE of f(z), on a batch of B proxy samples     both  4 A a round
               server: Delta = sum_k p_k (f_k - f), p_k by min(B, client k's proxy samples)
                       m <- .9 m + .1 Delta;  v <- .99 v + .01 Delta^2;  f <- f + eta m / (sqrt(v) + .001)

    f          mean               1/K sum_k z_k
               label_counts       1/K sum_k z_kc n_kc / sum_j n_jc; n_k once up, 4 C
               linear             sum_k a_k z_k + b, a [K] and b [C] start at 1            A = K + C
               linear_by_class    sum_k a_kc z_kc + b_c, likewise                          A = K C + C
               mlp                Linear(K C, K d), ReLU, Linear(K d, C)   A = K d (K C + 1 + C) + C

Round 1 is the one shot, each further one a round of f; with `mean` and `label_counts` these do nothing.
Readings: proxy samples are evenly spaced in a client's own order; n_k counts all; a class of nobody has equal
shares; the ensemble is of the clients that answered in round 1. Voting by competence and the mixture of
experts are not here. `mean` is the plain ensemble, of one client its own model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.protocol import (
    RECIPE_MODEL,
    Architecture,
    Averaged,
    ClientContext,
    Cohort,
    Drawn,
    Evaluable,
    Evaluated,
    FlatModule,
    LocalRecipe,
    Message,
    Method,
    MethodOptions,
    OptimizerRecipe,
    Predictor,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
    composite,
)
from rayfed_kd.toolbox.local_training import Phase, label_loss, label_options, train_phases
from rayfed_kd.toolbox.losses import NOTHING, cross_entropy
from rayfed_kd.toolbox.optimizers import FreeTensor, Optimizer

MODEL = "fens_model"
Aggregator = Literal["mean", "label_counts", "linear", "linear_by_class", "mlp"]


class Options(MethodOptions):
    """FENS's options; the defaults are those of the released scripts."""

    aggregator: Aggregator = Field("mlp", description="f, from all models' logits to the ensemble's")
    width: int = Field(2, ge=1, description="d of `mlp`: hidden units a model")
    proxy: float = Field(0.1, ge=0, le=0.5, description="share of a client's samples that f learns on")
    batch_size: int = Field(128, ge=1, description="B, proxy samples of a client's step of f")
    client_lr: float = Field(1.0, gt=0, description="of a client's step of f")
    server_lr: float = Field(0.001, gt=0, description="eta, of the server's")


@dataclass(frozen=True)
class ServerState:
    """Models one after the other, [sum_k P_k]; f, of `label_counts` n; m and v; who has the models."""

    models: Tensor
    architectures: str
    aggregator: Tensor
    first: Tensor
    second: Tensor
    having: tuple[int, ...] = ()


ClientState = tuple[Tensor, Tensor]  # of proxy samples: logits [n, K, C] of all models, and labels [n]


class FENS(Method[ServerState, ClientState | None]):
    """Federated ensembling."""

    options: Options
    summary = "clients of any architecture train once; an aggregator of all models' logits learns federated"
    paper = "Allouah et al. 2024, NeurIPS (FENS)"
    group_training = "the training of models"
    label_options = True
    server_keeps = "all models, the aggregator with its moments"
    client_keeps = "all models' logits of its proxy samples"
    down = {"models": "weights", "architectures": "ids", "aggregator": "weights"}
    up = {
        "student": Unaligned("weights"),
        "label_counts": "counts",
        "aggregator": Averaged("weights", by="samples"),
    }
    heterogeneous = True
    evaluates = ("ensemble",)

    def architectures(self) -> Mapping[str, Architecture]:
        """The recipe's model, by a name that means the same at a client with another."""
        return {MODEL: Architecture("classifier", RECIPE_MODEL, {})}

    def init_server(self, ctx: ServerContext) -> ServerState:
        """No models."""
        none = torch.empty(0)
        return ServerState(none, "", none, none, none)

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        """In the first round the one shot, in others a FedAdam step of f, if it learns."""
        if not server.architectures:
            replies = cohort.broadcast(self.train, Message())
            names = [ctx.client_models[k] for k in replies.clients]
            named = composite(MODEL if name == RECIPE_MODEL else name for name in names)
            models, f = torch.cat(list(replies.vectors("student"))), self.initial(replies, ctx)
            return ServerState(models, named, f, torch.zeros_like(f), torch.zeros_like(f))
        if self.options.aggregator in ("mean", "label_counts"):
            return server
        answers = cohort.scatter(self.step, {k: self._message(k, server) for k in cohort.clients})
        # Without models of round 1 that come late.
        answers = Replies([reply for reply in answers if "aggregator" in reply])
        server = replace(server, having=tuple(sorted({*server.having, *answers.clients})))
        mean = answers.aggregated("aggregator", answers.numbers("samples"), into=server.aggregator)
        return fedadam(server, mean - server.aggregator, self.options.server_lr)

    def train(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Train a model of the client's own by cross entropy, without its proxy samples."""
        student = ctx.model(ctx.own_initial_vector())
        trained = self.trained_samples(ctx.num_samples, ctx.local)  # whose pace it has
        phases = [Phase(label_loss, [Optimizer(ctx.local.of_client(trained).optimizer, student)])]
        passes = (samples_in(ctx, index, ~self.proxy(ctx.num_samples)) for index in count())
        drawn = islice(chain.from_iterable(passes), ctx.local.steps_of(trained))
        train_phases({"student": student}, phases, ((batch, NOTHING) for batch in drawn), ctx)
        counts = {"label_counts": ctx.label_counts()} if self.options.aggregator == "label_counts" else {}
        return None, Reply(student=student.vector(), **counts)

    def step(
        self, client: ClientState | None, message: Message, ctx: ClientContext
    ) -> tuple[ClientState, Reply]:
        """One step of f on a batch of proxy samples, after the logits of all models if these came."""
        logits, labels = client or self._told(message, ctx)
        f = FreeTensor(message["aggregator"])
        stream, most = ctx.stream("proxy"), self.options.batch_size
        if len(batch := torch.randperm(len(labels), generator=stream, device=ctx.device)[:most]):
            loss = cross_entropy(self.aggregated(f.value, logits[batch]), labels[batch], label_options(ctx))
            ctx.log(aggregator_ce=loss)
            Optimizer(OptimizerRecipe(name="sgd", lr=self.options.client_lr), f).minimise(loss)
        return (logits, labels), Reply(aggregator=f.trainable, samples=len(batch))

    def proxy(self, num_samples: int) -> Tensor:
        """Which of a client's samples are proxy, [n] bool on the CPU; of 100 with 0.29 these are 29."""
        return (torch.arange(num_samples + 1).double() * self.options.proxy + 1e-9).floor().diff() > 0

    def trained_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Those that are not proxy."""
        return int((~self.proxy(num_samples)).sum())

    def initial(self, replies: Replies, ctx: ServerContext) -> Tensor:
        """[A], f before its first round."""
        members, classes, kind = len(replies), ctx.classes, self.options.aggregator
        if kind == "label_counts":
            return torch.cat(list(replies.vectors("label_counts")))
        if kind != "mlp":
            lengths = {"linear": members + classes, "linear_by_class": (members + 1) * classes}
            return torch.ones(lengths.get(kind, 0))
        sides = [(members * classes, members * self.options.width), (members * self.options.width, classes)]
        stream = ctx.stream("aggregator")  # drawn as torch draws linear layers
        drawn = [torch.rand((n + 1) * m, generator=stream, device=ctx.device) for n, m in sides]
        return torch.cat([(2 * draw - 1) / n**0.5 for draw, (n, _) in zip(drawn, sides, strict=True)]).cpu()

    def aggregated(self, f: Tensor, logits: Tensor) -> Tensor:
        """f(z), [batch, C], of z [batch, K, C]; the numbers of f are [A]."""
        members, classes = logits.shape[1:]
        if self.options.aggregator == "mean":
            return logits.mean(1)
        if self.options.aggregator == "label_counts":
            counts = f.view(members, classes)
            shares = torch.where(counts.sum(0) > 0, counts / counts.sum(0).clamp(min=1), 1 / members)
            return (shares * logits).mean(1)
        if self.options.aggregator == "mlp":
            hidden = (members * classes + 1) * members * self.options.width
            return linear(f[hidden:], F.relu(linear(f[:hidden], logits.flatten(1))))
        return (f[:-classes].view(members, -1) * logits).sum(1) + f[-classes:]

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """The ensemble: all models with f behind them; nothing before there are any."""
        vector = torch.cat([server.models, server.aggregator])
        return {"ensemble": Evaluated(vector, server.architectures)} if server.architectures else {}

    def composed(self, parts: Sequence[FlatModule], numbers: Tensor) -> Predictor:
        """f of all models' logits."""
        return lambda images: self.aggregated(numbers, torch.stack([part(images) for part in parts], 1))

    def _message(self, client: int, server: ServerState) -> Message:
        if client in server.having:
            return Message(aggregator=server.aggregator)
        names = torch.tensor(list(server.architectures.encode()), dtype=torch.uint8)
        return Message(aggregator=server.aggregator, models=server.models, architectures=names)

    def _told(self, message: Message, ctx: ClientContext) -> ClientState:
        """What all models say of the client's proxy samples."""
        names = bytes(message["architectures"].tolist()).decode().splitlines()
        vectors = message["models"].split([ctx.initial_vector(name).numel() for name in names])
        # Copies, as kernels choose their code by alignment.
        models = [ctx.frozen_model(part.clone(), name) for part, name in zip(vectors, names, strict=True)]
        logits = [torch.zeros(0, len(names), ctx.classes, device=ctx.device)]
        labels = [torch.zeros(0, dtype=torch.int64, device=ctx.device)]
        with torch.no_grad():
            for drawn in samples_in(ctx, 0, self.proxy(ctx.num_samples), trains=False):
                images, classes = ctx.read(drawn)
                logits.append(torch.stack([model(images) for model in models], 1))
                labels.append(classes)
        return torch.cat(logits), torch.cat(labels)


def samples_in(ctx: ClientContext, index: int, part: Tensor, *, trains: bool = True) -> Iterator[Drawn]:
    """Pass `index` over the samples that `part`, [n] bool, says; all and as they are if nothing `trains`."""
    drawn = list(ctx.batches(index, every=True))
    if drawn:
        columns = [torch.cat(column) for column in list(zip(*drawn, strict=True))[:2]]
        mine = part[columns[0].cpu()]
        batches = (ctx.in_batches(column[mine.to(column.device)], every=not trains) for column in columns)
        augmented = drawn[0].augmented if trains else lambda images: images
        yield from (Drawn(which, of, augmented) for which, of in zip(*batches, strict=True))


def fedadam(server: ServerState, change: Tensor, lr: float) -> ServerState:
    """f after a mean change [A], with its moments; these are not corrected for their start."""
    first = 0.9 * server.first + 0.1 * change
    second = 0.99 * server.second + 0.01 * change.square()
    aggregator = server.aggregator + lr * first / (second.sqrt() + 1e-3)
    return replace(server, aggregator=aggregator, first=first, second=second)


def linear(numbers: Tensor, inputs: Tensor) -> Tensor:
    """A linear layer, whose numbers are its weights row by row, and its biases."""
    outputs = len(numbers) // (inputs.shape[1] + 1)
    return F.linear(inputs, numbers[:-outputs].view(outputs, -1), numbers[-outputs:])
