"""FedL2G: the server learns vectors that guide clients of any architecture, from gradients of their losses.

Zhang, Liu, Hua, Cao, Yang 2024, Learning to Guide Local Training in Heterogeneous Federated Learning,
arXiv 2410.06490; released code TsingZ0/FedL2G.

    g_c        the guiding vector of class c, of the length d of what it guides: logits, or features
    quiz       Q batches of the client's own samples, which its training never sees
    client     1. after `warmup` rounds: trains on CE + lambda MSE(out, g_y), without the quiz
               2. theta' = theta - eta grad of the mean over M study batches of CE + lambda MSE(out, g_y)
                  L' = mean CE of the quiz batches at theta'
    server     per class the mean over its senders of d L' / d g_c, 0 without any; one step of SGD on all g_c
    down       g_1 ... g_C                                                        4 C d bytes a client
    up         d L' / d g_c and c of each class c in the study batches            4 (1 + d) bytes a class

A client keeps its model, theta. g_c enters theta' in the squared difference alone: d L' / d g_c =
2 eta lambda / (B d M) sum over study samples i of class c of J_i v, v the gradient of L' at theta', J_i the
Jacobian of out_i at theta. Readings: g starts with normal numbers; the quiz is at most half of a client's
samples: in `held_out` its first ones, as released, in `drawn` others each round, which training sees as well;
study batches are of the pass after training; step 2 is in eval mode and changes nothing. lambda = 0 is
Stand-Alone, but for the warm-up, without the quiz samples, or with them if they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from rayfed_kd.protocol import (
    ClientContext,
    Drawn,
    FlatModule,
    LocalRecipe,
    Message,
    MethodOptions,
    OneExchange,
    RecipeError,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.layers import check_equal_features, feature_length
from rayfed_kd.toolbox.local_training import Loss, Models, Phase, Tensors, label_options, train_phases
from rayfed_kd.toolbox.losses import NOTHING, cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer, clipped
from rayfed_kd.toolbox.own_models import OwnModels

Predict = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(parameters [n], images [batch, ...]) -> logits [batch, C], and what is guided, [batch, d]."""


class Options(MethodOptions):
    """FedL2G's options; the defaults are those of the released code."""

    guided: Literal["logits", "features"] = Field("logits", description="what vectors guide")
    weight: float = Field(1.0, ge=0, description="lambda, of the distance from the guiding vectors")
    warmup: int = Field(50, ge=0, description="first rounds, in which guides learn and no model trains")
    study_batches: int = Field(1, ge=1, description="M")
    quiz_batches: int = Field(1, ge=1, description="Q")
    quiz: Literal["held_out", "drawn"] = Field("held_out", description="the quiz's samples: fixed, or anew")
    step: float | None = Field(None, gt=0, description="eta; null: the rate of local.optimizer")
    server_lr: float = Field(0.01, gt=0, description="of the guiding vectors. Scripts: 0.1; features: 100")
    clip: float | None = Field(100.0, gt=0, description="largest gradient on both sides; null: any")

    def held(self, samples: int, local: LocalRecipe) -> int:
        """How many of a client's samples are the quiz."""
        return min(self.quiz_batches * local.batch_size, samples // 2)


class FedL2G(OwnModels, OneExchange[Tensor, Tensor], plain_training=True):
    """Learning to guide: the server's state are the guiding vectors, [C, d], a client's is its model."""

    options: Options
    summary = "clients of any architecture are guided by a vector of each class, which the server learns"
    paper = "Zhang et al. 2024, arXiv 2410.06490"
    server_keeps = "the guiding vectors"
    down = {"guides": "prototypes"}
    up = {"gradients": Unaligned("prototypes"), "classes": "labels"}
    heterogeneous = True

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError if all rounds are warm-up, or features that are guided differ in length."""
        if ctx.rounds <= self.options.warmup:
            raise RecipeError(
                f"method.warmup = {self.options.warmup}: no model trains in these rounds; expected fewer "
                f"than the {ctx.rounds} of the run"
            )
        if self.options.guided == "features":
            check_equal_features(ctx)

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """None in a round of the warm-up; else local training's, without a quiz that is held out."""
        return 0 if self.options.warmup else local.samples_of(self.trained_samples(num_samples, local))

    def trained_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Those that are not in a quiz that is held out."""
        return num_samples - (self.options.held(num_samples, local) if self.options.quiz == "held_out" else 0)

    def init_server(self, ctx: ServerContext) -> Tensor:
        """Guiding vectors of normal numbers."""
        length = ctx.classes
        if self.options.guided == "features":
            length = feature_length(ctx.frozen_model(ctx.initial_vector()), ctx)
        return torch.randn(ctx.classes, length, generator=ctx.stream("guides"), device=ctx.device).cpu()

    def dispatch(self, server: Tensor, ctx: ServerContext) -> Message:
        """Send the guiding vectors."""
        return Message(guides=server)

    def client_update(self, client: Tensor, message: Message, ctx: ClientContext) -> tuple[Tensor, Reply]:
        """Train the client's model, unless it is warm-up; send gradients of its quiz."""
        student, options = ctx.model(client), self.options
        if ctx.round > options.warmup:
            paced = ctx.local.of_client(self.trained_samples(ctx.num_samples, ctx.local))  # of its passes
            optimizer = Optimizer(clipped(paced.optimizer, options.clip), student)
            batches = ((drawn, NOTHING) for drawn in self._batches(ctx))
            phases, extras = [Phase(self.loss, [optimizer])], {"guides": message["guides"]}
            train_phases({"student": student}, phases, batches, ctx, extras=extras)
        vector = student.vector()
        return vector, self._studied(ctx.frozen_model(vector), vector, message["guides"], ctx)

    def loss(self, models: Models, batch: Tensors, extras: Tensors) -> Loss:
        """CE + lambda MSE(out, g_y)."""
        logits, guided = guided_outputs(models["student"], batch["images"], self.options.guided)
        hard = cross_entropy(logits, batch["labels"], extras)
        away = F.mse_loss(guided, extras["guides"][batch["labels"]])
        return Loss(hard + self.options.weight * away, {"ce": hard, "guide_distance": away})

    def absorb(self, server: Tensor, replies: Replies, ctx: ServerContext) -> Tensor:
        """One step of SGD on the mean of each class's gradients."""
        sums, senders = torch.zeros_like(server, dtype=torch.float64), torch.zeros(len(server), 1)
        for reply in replies:
            places = reply["classes"].long()  # each class once
            sums[places] += reply["gradients"]
            senders[places] += 1
        mean = sums / senders.clamp(min=1)
        norm = float(mean.norm())
        ctx.log(guide_gradient=norm)
        factor = min(1.0, self.options.clip / norm) if self.options.clip and norm else 1.0
        return (server - self.options.server_lr * factor * mean).to(server.dtype)

    def _batches(self, ctx: ClientContext) -> Iterator[Drawn]:
        """Those of local training; without a quiz that is held out, as a client that has only the rest."""
        if (trained := self.trained_samples(ctx.num_samples, ctx.local)) == ctx.num_samples:
            return ctx.local_batches()
        passes = (self._parted(ctx, index)[1] for index in count())
        return islice(chain.from_iterable(passes), ctx.local.steps_of(trained))

    def _parted(self, ctx: ClientContext, index: int) -> tuple[Sequence[Drawn], Sequence[Drawn]]:
        """A pass's batches of quiz samples, and those of the others."""
        drawn = list(ctx.batches(index, every=True))
        numbers, indices = (torch.cat(column) for column in list(zip(*drawn, strict=True))[:2])
        quiz_size, places = self.options.held(ctx.num_samples, ctx.local), numbers
        if self.options.quiz == "drawn":
            places = torch.arange(len(numbers), device=numbers.device)
        parts = []
        for chosen in (places < quiz_size, places >= quiz_size):
            rows = ctx.in_batches(numbers[chosen]), ctx.in_batches(indices[chosen.to(indices.device)])
            parts.append([Drawn(which, of, drawn[0].augmented) for which, of in zip(*rows, strict=True)])
        return parts[0], parts[1]

    def _studied(self, model: FlatModule, vector: Tensor, guides: Tensor, ctx: ClientContext) -> Reply:
        """The reply of step 2; without rows from a client of fewer than two samples."""
        if ctx.num_samples < 2:
            return Reply(gradients=guides[:0], classes=torch.zeros(0, dtype=torch.int32))
        quiz, study = self._parted(ctx, ctx.passes)
        outputs, trained = Outputs(model, self.options.guided), model.num_parameters

        def predict(parameters: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
            tensors = model.tensors(torch.cat([parameters, vector[trained:]]))
            # Buffers are the model's own already, and BatchNorm takes none that a gradient reaches.
            named = {f"inner.{slot.name}": tensors[slot.name] for slot in model.trained}
            logits, out = functional_call(outputs, named, (images,))
            return logits, out

        studied = [ctx.read(batch) for batch in study[: self.options.study_batches]]
        asked = [ctx.read(batch) for batch in quiz]
        rates = {"step": self.options.step or ctx.local.optimizer.lr, "weight": self.options.weight}
        rows = guide_gradients(predict, vector[:trained], guides, studied, asked, label_options(ctx), **rates)
        classes = torch.unique(torch.cat([labels for _, labels in studied]))
        return Reply(gradients=rows[classes], classes=classes.int())


def guided_outputs(model: FlatModule, images: Tensor, guided: str) -> tuple[Tensor, Tensor]:
    """Logits [batch, C], and what is guided: the same, or features [batch, d], which not all models have."""
    if guided == "logits":
        return (logits := model(images)), logits
    features = model.features(images)
    return model.classify(features), features


class Outputs(nn.Module):
    """The same of one model, as a module whose tensors `functional_call` replaces."""

    def __init__(self, model: FlatModule, guided: str) -> None:
        super().__init__()
        self.inner, self.model, self.guided = model.module, model, guided

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return guided_outputs(self.model, images, self.guided)


def guide_gradients(
    predict: Predict,
    parameters: Tensor,
    guides: Tensor,
    study: Sequence[tuple[Tensor, Tensor]],
    quiz: Sequence[tuple[Tensor, Tensor]],
    extras: Tensors = NOTHING,
    *,
    step: float,
    weight: float,
) -> Tensor:
    """d L' / d g_c of every class, [C, d]; 0 for a class that no study sample has.

    Args:
        predict: as its type says.
        parameters: [n], theta.
        guides: [C, d], g.
        study, quiz: batches of images and labels.
        extras: of cross entropy.
        step: eta.
        weight: lambda.
    """
    theta, vectors = parameters.detach().requires_grad_(), guides.detach().requires_grad_()
    losses = []
    for images, labels in study:
        with sdpa_kernel(SDPBackend.MATH):  # attention's other kernels have no second derivative
            logits, out = predict(theta, images)
        # A product with one-hot labels: the gradient of an index would sum in any order on a GPU.
        targets = F.one_hot(labels, len(guides)).to(guides.dtype) @ vectors
        losses.append(cross_entropy(logits, labels, extras) + weight * F.mse_loss(out, targets))
    (slope,) = torch.autograd.grad(torch.stack(losses).mean(), theta, create_graph=True)
    moved = (theta - step * slope).detach().requires_grad_()
    results = [cross_entropy(predict(moved, images)[0], labels, extras) for images, labels in quiz]
    (v,) = torch.autograd.grad(torch.stack(results).mean(), moved)
    # From theta' back to g alone: what a slope of the model's own slope would cost is left out.
    (rows,) = torch.autograd.grad(-step * (slope * v).sum(), vectors)
    return rows
