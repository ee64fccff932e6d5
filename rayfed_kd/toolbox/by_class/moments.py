"""Means and covariances by class: what clients tell of their features, and samples drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext


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


def feature_moments(model: FlatModule, ctx: ClientContext) -> Moments:
    """Of a frozen model's features, over all of a client's samples, in float32 as they travel."""
    with torch.no_grad():
        batches = [(model.features(images), labels) for images, labels in ctx.samples()]
    features, labels = (torch.cat(list(column)) for column in zip(*batches, strict=True))
    return moments(features, labels)


def moments(rows: Tensor, labels: Tensor) -> Moments:
    """Of vectors [N, L] with labels [N] int64; computed in float64, float32 back."""
    classes, counts = torch.unique(labels, return_counts=True)
    means, triangles = [], []
    upper = torch.triu_indices(rows.shape[1], rows.shape[1], device=rows.device)
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        own = rows[labels == label].to(torch.float64)
        means.append(own.mean(0))
        apart = own - means[-1]
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
        own = [_of_class(source, label) for source in sources if label in source.classes.tolist()]
        total = sum(count for _, _, count in own)
        mean = torch.stack([count * mu for mu, _, count in own]).sum(0) / total
        scatter = torch.zeros(upper.shape[1], dtype=torch.float64)
        for mu, triangle, count in own:
            apart = mu - mean
            scatter += (count - 1) * triangle + count * apart[upper[0]] * apart[upper[1]]
        means.append(mean)
        triangles.append(scatter / max(total - 1, 1))
        counts.append(total)
    return Moments(every, torch.stack(means), torch.stack(triangles), torch.tensor(counts))


def drawn_rows(source: Moments, number: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Vectors from the normal distribution of each class.

    Args:
        source: from `pooled_moments`.
        number: of each class.
        stream: where they are computed; its device.
    Returns: [n number, L] float32, class after class; [n number] int64, their classes.
    """
    length, device = source.means.shape[1], stream.device
    upper, drawn = torch.triu_indices(length, length), []
    for mean, triangle in zip(source.means, source.covariances, strict=True):
        covariance = torch.zeros(length, length, dtype=torch.float64)
        covariance[upper[0], upper[1]] = triangle.to(covariance)
        covariance = covariance + covariance.triu(1).T
        values, vectors = torch.linalg.eigh(covariance)
        # Rounding can leave a covariance of few vectors with eigenvalues below 0.
        root = vectors * values.clamp(min=0).sqrt()
        z = torch.randn(number, length, generator=stream, device=device, dtype=torch.float64)
        drawn.append(mean.to(z) + z @ root.T.to(z))
    labels = source.classes.to(device).long().repeat_interleave(number)
    return torch.cat(drawn).float(), labels


def _of_class(source: Moments, label: int) -> tuple[Tensor, Tensor, float]:
    place = source.classes.tolist().index(label)
    numbers = source.means[place].cpu().double(), source.covariances[place].cpu().double()
    return *numbers, float(source.counts[place])
