"""CCVR: after the rounds of another method, the last layer is trained anew on features drawn by class.

Luo, Chen, Hu, Zhang, Liang, Feng 2021, No Fear of Heterogeneity: Classifier Calibration for Federated
Learning with Non-IID Data, NeurIPS, arXiv 2106.05001, eqs. 2 to 4.

    mu_{k,c}, Sigma_{k,c}  mean and unbiased covariance of the global model's features of class c, client k
    mu_c                   sum_k n_{k,c} mu_{k,c} / N_c
    Sigma_c                covariance of all clients' features of class c together, from the above
    server                 draws M features of each class from N(mu_c, Sigma_c); cross entropy of the last
                           layer on them, and of nothing else
    down                   the global model                            4 P bytes a client
    up                     mu, Sigma, c and n_{k,c} of each class      4 C_k (K_f + K_f (K_f + 1) / 2 + 2)

The recipe names the other method: `method: {name: ccvr, method: {name: fedprox, mu: 0.1}}`. Its rounds are as
they would be without; both models are evaluated. Readings: of the method's shared models the first, unless
`model` names another; the clients that answered in the last round are asked, in eval mode, without
augmentation; features are taken as they are; a class that none of them has is not drawn. Without calibration
epochs the calibrated model is the other method's, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from rayfed_kd.algorithms import METHODS
from rayfed_kd.protocol import (
    Architecture,
    ClientContext,
    Cohort,
    Evaluable,
    Message,
    OptimizerRecipe,
    RecipeError,
    Reply,
    ServerContext,
    Unaligned,
    Wrapping,
    WrappingOptions,
    WrappingState,
)
from rayfed_kd.toolbox.by_class.means import drawn_rows, sample_features
from rayfed_kd.toolbox.layers import check_features, head_place
from rayfed_kd.toolbox.losses import cross_entropy
from rayfed_kd.toolbox.optimizers import Optimizer

HEAD = "ccvr_head"
PARTS = ("class_labels", "class_means", "class_covariances", "class_counts")  # in the order of Moments


class Options(WrappingOptions):
    """CCVR's options, beside the method that it follows."""

    model: str | None = Field(None, description="which of its evaluated models; null: the first shared one")
    every: int | None = Field(None, ge=1, description="rounds between calibrations; null: after the last")
    samples_per_class: int = Field(200, ge=1, description="features drawn of each class, M")
    epochs: int = Field(1, ge=0, description="passes over the drawn features")
    batch_size: int | None = Field(None, ge=1, description="features a step; null: local.batch_size")
    optimizer: OptimizerRecipe | None = Field(None, description="of the last layer; null: local.optimizer")


@dataclass(frozen=True)
class Moments:
    """Of the vectors of some classes, of length L.

    Attributes:
        classes: [n] int32, ascending, each once.
        means: [n, L].
        covariances: [n, L (L + 1) / 2], unbiased, each matrix' upper triangle row by row; 0 of one vector.
        counts: [n], vectors behind them, at least 1.
    """

    classes: Tensor
    means: Tensor
    covariances: Tensor
    counts: Tensor


@dataclass(frozen=True)
class ServerState(WrappingState):
    """The other method's state, and the model of this round after calibration, [P]; None without one.

    Before the first round it is the initial model, so that searches and `stop` know that there will be one.
    """

    calibrated: Tensor | None


class CCVR(Wrapping[ServerState]):
    """Classifier calibration with virtual representations."""

    options: Options
    registered = METHODS
    summary = "the last layer of another method's model, trained on features drawn from statistics by class"
    paper = "Luo et al. 2021, arXiv 2106.05001"
    server_keeps = "what the other method keeps, the calibrated model"
    client_keeps = "what the other method keeps"
    group_training = "what the other method trains in groups"
    down = {"calibrated_model": "weights"}
    up = {
        "class_means": Unaligned("prototypes"),
        "class_covariances": Unaligned("prototypes"),
        "class_labels": "labels",
        "class_counts": "counts",
    }

    def architectures(self) -> Mapping[str, Architecture]:
        return {**super().architectures(), HEAD: Architecture("head", "linear", {}, space="features")}

    def check(self, ctx: ServerContext) -> str | None:
        """Raise RecipeError unless a shared model ends in a linear layer, and is calibrated once or more."""
        note, every = super().check(ctx), self.options.every
        if every is not None and every > ctx.rounds:
            raise RecipeError(
                f"method.every = {every}: none of {ctx.rounds} rounds calibrates; expected fewer"
            )
        self.init_server(ctx)  # refuses a method without a shared model
        check_features(ctx)
        head_place(ctx.frozen_model(ctx.initial_vector()))
        return note

    def init_server(self, ctx: ServerContext) -> ServerState:
        inside = self.inside.init_server(ctx)
        return ServerState(inside, self._model(inside)[1])

    def run_round(self, server: ServerState, cohort: Cohort, ctx: ServerContext) -> ServerState:
        inside = self.inside.run_round(server.inside, cohort, ctx)
        if ctx.round % (self.options.every or ctx.rounds):
            return ServerState(inside, None)
        _, vector = self._model(inside)
        replies = cohort.broadcast(self.class_moments, Message(calibrated_model=vector))
        client_moments = [Moments(*(reply[part] for part in PARTS)) for reply in replies]
        return ServerState(inside, self._calibrated(vector, pooled_moments(client_moments), ctx))

    def class_moments(self, client: Any, message: Message, ctx: ClientContext) -> tuple[Any, Reply]:
        """Send mu, Sigma and n of the received model's features; what the client keeps stays."""
        stats = moments(*sample_features(ctx.frozen_model(message["calibrated_model"]), ctx))
        sent = dict(zip(PARTS, (stats.classes, stats.means, stats.covariances, stats.counts), strict=True))
        return client, Reply(**sent)

    @property
    def evaluates(self) -> Sequence[str]:
        """The other method's models, and any of them as NAME_ccvr."""
        models = self.inside.evaluates
        return [*models, *(f"{model}_ccvr" for model in models)]

    def evaluated(self, server: ServerState) -> Mapping[str, Evaluable]:
        """The other method's models, and the calibrated one as NAME_ccvr."""
        models = self.inside.evaluated(server.inside)
        if server.calibrated is None:
            return models
        return {**models, f"{self._model(server.inside)[0]}_ccvr": server.calibrated}

    def _model(self, inside: Any) -> tuple[str, Tensor]:
        """The model that is calibrated, and its name."""
        models = self.inside.evaluated(inside)
        shared = {name: model for name, model in models.items() if isinstance(model, Tensor)}
        name = self.options.model or next(iter(shared), "at all")
        if name not in shared:
            known = ", ".join(shared) or "its clients' own models alone"
            raise RecipeError(f"method.method: there is no shared model {name}; that method has {known}")
        return name, shared[name]

    def _calibrated(self, vector: Tensor, moments: Moments, ctx: ServerContext) -> Tensor:
        """The model with its last layer trained on drawn features."""
        place = head_place(ctx.frozen_model(vector))
        head = ctx.model(vector[place], HEAD)
        optimizer = Optimizer(self.options.optimizer or ctx.local.optimizer, head)
        stream = ctx.stream("virtual")
        rows, labels = virtual_features(moments, self.options.samples_per_class, stream)
        for _ in range(self.options.epochs):
            order = torch.randperm(len(rows), generator=stream, device=rows.device)
            for batch in ctx.in_batches(order, self.options.batch_size):
                loss = cross_entropy(head(rows[batch]), labels[batch])
                ctx.log(calibration_ce=loss)
                optimizer.minimise(loss)
        calibrated = vector.clone()
        calibrated[place] = head.vector().to(vector)
        return calibrated


def moments(rows: Tensor, labels: Tensor) -> Moments:
    """Of vectors [N, L] with labels [N] int64; computed in float64, float32 back, as they travel."""
    classes, counts = torch.unique(labels, return_counts=True)
    means, triangles = [], []
    upper = torch.triu_indices(rows.shape[1], rows.shape[1], device=rows.device)
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        vectors = rows[labels == label].to(torch.float64)
        means.append(vectors.mean(0))
        apart = vectors - means[-1]
        triangles.append((apart.T @ apart)[upper[0], upper[1]] / max(count - 1, 1))
    return Moments(classes.int(), torch.stack(means).float(), torch.stack(triangles).float(), counts.float())


def pooled_moments(sources: Sequence[Moments]) -> Moments:
    """Those of all sources' vectors together, exact but for rounding, in float64 on the CPU.

    mu = sum n_k mu_k / N and (N - 1) Sigma = sum (n_k - 1) Sigma_k + sum n_k (mu_k - mu) (mu_k - mu)',
    which is CCVR's eq. 4 (Luo et al. 2021) without its difference of large numbers.

    Args:
        sources: at least one, of equal length.
    """
    every = torch.unique(torch.cat([source.classes.cpu() for source in sources]))
    length = sources[0].means.shape[1]
    upper = torch.triu_indices(length, length)
    means, triangles, counts = [], [], []
    for label in every.tolist():
        groups = [_of_class(source, label) for source in sources if label in source.classes.tolist()]
        total = sum(count for _, _, count in groups)
        mean = torch.stack([count * mu for mu, _, count in groups]).sum(0) / total
        scatter = torch.zeros(upper.shape[1], dtype=torch.float64)
        for mu, triangle, count in groups:
            apart = mu - mean
            scatter += (count - 1) * triangle + count * apart[upper[0]] * apart[upper[1]]
        means.append(mean)
        triangles.append(scatter / max(total - 1, 1))
        counts.append(total)
    return Moments(every, torch.stack(means), torch.stack(triangles), torch.tensor(counts))


def virtual_features(source: Moments, number: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Vectors from the normal distribution of each class.

    Args:
        source: from `pooled_moments`.
        number: of each class.
        stream: where they are computed; its device.
    Returns: [n number, L] float32, class after class; [n number] int64, their classes.
    """
    numbers = zip(source.means, source.covariances, strict=True)
    drawn = [drawn_rows(mean, triangle, number, stream) for mean, triangle in numbers]
    labels = source.classes.to(stream.device).long().repeat_interleave(number)
    return torch.cat(drawn).float(), labels


def _of_class(source: Moments, label: int) -> tuple[Tensor, Tensor, float]:
    place = source.classes.tolist().index(label)
    numbers = source.means[place].cpu().double(), source.covariances[place].cpu().double()
    return *numbers, float(source.counts[place])
