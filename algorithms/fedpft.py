"""FedPFT: clients send a Gaussian of each class's features; the server trains a head on draws from them.

Beitollahi, Bie, Hemati, Brunswic, Li, Chen, Zhang 2024, Parametric Feature Transfer: One-shot Federated
Learning with Foundation Models, arXiv 2402.01862; released code: Flower's baseline `fedpft`.

    down      the extractor, the initial model, once                                    4 P bytes a client
    client    of its features of each class with more than one sample:
              mu       mean
              Sigma    spherical: mean over dimensions of the biased variances + 1e-6; diagonal: the biased
                       variances + 1e-6; full: the biased covariance + 1e-6 I
    up        mu, Sigma in float16, the class and its count n
              2 (K_f + s) + 8 bytes a class, s = 1, K_f or K_f (K_f + 1) / 2
    server    draws n features from N(mu, Sigma) of every client and class; trains a new linear head on
              them by cross entropy, on the extractor, which stays

Clients keep nothing and train nothing: the extractor must be good, as torchvision's with its weights from a
file. Readings: a mixture has one component, as in the released code's last version, whose weight is 1 and
does not travel; features are in eval mode, not augmented; an update takes what came in it, and a further
round begins anew; draws differ for each client and class. A class that a client has one sample of is left
out, as released. With full covariances these are CCVR's Gaussians, biased and not pooled, under a head from
scratch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    LocalRecipe,
    Message,
    MethodOptions,
    OptimizerRecipe,
    Replies,
    Reply,
    ServerContext,
    Unaligned,
)
from rayfed_kd.toolbox.averaging import GlobalModel, SharedModel
from rayfed_kd.toolbox.by_class.means import drawn_rows, sample_features
from rayfed_kd.toolbox.layers import check_features, head_place
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

HEAD = "fedpft_head"
FLOOR = 1e-6
ADAMW = {"name": "adamw", "lr": 1e-4, "weight_decay": 0.01}
Covariance = Literal["spherical", "diagonal", "full"]


class Options(MethodOptions):
    """FedPFT's options; the defaults are those of the released code."""

    covariance: Covariance = Field("spherical", description="of a class's features")
    numbers: Literal["float16", "float32"] = Field("float16", description="means and covariances travel so")
    epochs: int = Field(50, ge=0, description="passes of the head over the drawn features")
    batch_size: int = Field(32, ge=1, description="features a step")
    optimizer: OptimizerRecipe = Field(OptimizerRecipe.model_validate(ADAMW), description="of the head")


@dataclass(frozen=True)
class Gaussian:
    """mean: [L]. spread: [1] or [L] variances, or [L (L + 1) / 2], the upper triangle row by row."""

    mean: Tensor
    spread: Tensor


class FedPFT(SharedModel[GlobalModel, None]):
    """Parametric feature transfer."""

    options: Options
    summary = "one exchange: clients send Gaussians of features by class, on draws of which a head is trained"
    paper = "Beitollahi et al. 2024, arXiv 2402.01862"
    server_keeps = "the extractor and the head"
    up = {
        "class_means": Unaligned("prototypes"),
        "class_covariances": Unaligned("prototypes"),
        "class_labels": "labels",
        "class_counts": "counts",
    }

    def architectures(self) -> dict[str, Architecture]:
        """The head: features to logits."""
        return {HEAD: Architecture("head", "linear", {}, space="features")}

    def check(self, ctx: ServerContext) -> None:
        """Raise RecipeError unless the model ends in a linear layer on features."""
        check_features(ctx)
        head_place(ctx.frozen_model(ctx.initial_vector()))

    def least_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """Each sample once, as nothing trains."""
        return num_samples

    def trained_samples(self, num_samples: int, local: LocalRecipe) -> int:
        """None: no client trains."""
        return 0

    def init_server(self, ctx: ServerContext) -> GlobalModel:
        """The initial model."""
        return GlobalModel(ctx.initial_vector())

    def client_update(self, client: None, message: Message, ctx: ClientContext) -> tuple[None, Reply]:
        """Send a Gaussian of the features of each class with more than one sample."""
        model, kind = ctx.frozen_model(message["student"]), self.options.covariance
        rows, owners = sample_features(model, ctx)
        classes, counts = torch.unique(owners, return_counts=True)
        classes, counts = classes[counts > 1], counts[counts > 1]
        fits = [gaussian(rows[owners == label], kind) for label in classes.tolist()]
        means = torch.stack([fit.mean for fit in fits]) if fits else rows[:0]
        spreads = torch.stack([fit.spread for fit in fits]) if fits else rows[:0, :1]
        dtype = torch.float16 if self.options.numbers == "float16" else torch.float32
        return None, Reply(
            class_means=means.to(dtype),
            class_covariances=spreads.to(dtype),
            class_labels=classes.int(),
            class_counts=counts.float(),
        )

    def absorb(self, server: GlobalModel, replies: Replies, ctx: ServerContext) -> GlobalModel:
        """Draw features of every client and class, and train a new head on them."""
        place = head_place(ctx.frozen_model(server.weights))
        drawn: list[Tensor] = []
        labels: list[Tensor] = []
        stream = ctx.stream("virtual")
        for reply in replies:
            numbers = zip(reply["class_labels"].tolist(), reply["class_counts"].tolist(), strict=True)
            for row, (label, count) in enumerate(numbers):
                fit = Gaussian(reply["class_means"][row], reply["class_covariances"][row])
                drawn.append(draws(fit, int(count), stream))
                labels.append(torch.full((int(count),), label, device=stream.device))
        if not drawn:
            return server
        head = ctx.model(ctx.initial_vector(HEAD), HEAD)
        optimizer = Optimizer(self.options.optimizer, head)
        rows, classes = torch.cat(drawn), torch.cat(labels)
        for _ in range(self.options.epochs):
            order = torch.randperm(len(rows), generator=stream, device=stream.device)
            for batch in ctx.in_batches(order, self.options.batch_size):
                loss = cross_entropy(head(rows[batch]), classes[batch])
                ctx.log(head_ce=loss)
                optimizer.minimise(loss)
        weights = server.weights.clone()
        weights[place] = head.vector().to(weights)
        return GlobalModel(weights, server.version + 1)


def gaussian(rows: Tensor, kind: Covariance) -> Gaussian:
    """Mean and covariance of vectors [n, L], biased, and FLOOR on the diagonal."""
    rows = rows.to(torch.float64)
    mean = rows.mean(0)
    apart = rows - mean
    if kind == "full":
        upper = torch.triu_indices(len(mean), len(mean), device=rows.device)
        covariance = apart.T @ apart / len(rows) + FLOOR * torch.eye(len(mean), device=rows.device)
        return Gaussian(mean, covariance[upper[0], upper[1]])
    variances = apart.square().mean(0)
    return Gaussian(mean, FLOOR + (variances.mean(0, keepdim=True) if kind == "spherical" else variances))


def draws(fit: Gaussian, number: int, stream: torch.Generator) -> Tensor:
    """[number, L] float32 vectors of a normal distribution, where `stream` lies."""
    mean, spread = fit.mean.to(stream.device, torch.float64), fit.spread.to(stream.device, torch.float64)
    if len(spread) not in (1, len(mean)):  # a triangle has one of these lengths for one dimension alone
        return drawn_rows(mean, spread, number, stream).float()
    z = torch.randn(number, len(mean), generator=stream, device=stream.device, dtype=torch.float64)
    return (mean + z * spread.clamp(min=0).sqrt()).float()
