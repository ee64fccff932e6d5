"""Robust means: what a server may take instead of the plain mean when some of its clients lie.

All are unweighted and take one tensor a client. The order of clients changes nothing but ties: of points with
equal scores Krum takes the first, and of points equally far from their mean the spectral filter either.
Median and trimmed mean act on every coordinate alone, so of probability vectors they give none; Krum takes a
client's whole tensor as one vector; the spectral filter (Cronus) acts on every public sample alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rayfed_kd.errors import RecipeError, RunError
from rayfed_kd.models.vectors import weighted_mean
from rayfed_kd.protocol import MethodOptions

ROUNDING = 1e-9
Aggregation = Literal["mean", "median", "trimmed_mean", "krum", "multi_krum"]


class AggregationOptions(MethodOptions):
    """How a server makes one vector of its clients' vectors."""

    aggregation: Aggregation = Field("mean", description="robust ones are unweighted")
    trim: float = Field(0.1, ge=0, lt=0.5, description="trimmed_mean: share cut off on either side")
    corrupt: int = Field(1, ge=0, description="krum, multi_krum: how many clients may lie, f")
    chosen: int | None = Field(None, ge=1, description="multi_krum: how many are averaged; null: n - f")

    @model_validator(mode="after")
    def _effective(self) -> AggregationOptions:
        readers = {"trim": ["trimmed_mean"], "corrupt": ["krum", "multi_krum"], "chosen": ["multi_krum"]}
        for name in self.model_fields_set & set(readers):
            if self.aggregation not in readers[name]:
                of = " and ".join(readers[name])
                raise ValueError(f"{name} belongs to {of}, not to aggregation = {self.aggregation}")
        return self

    def check_clients(self, clients: int, *, late: bool = False, few: str = "") -> None:
        """Check that a robust mean can be taken in every round.

        Args:
            clients: the fewest replies of a round.
            late: whether the schedule keeps late replies.
            few: why a round may have any number of clients; empty: it may not.
        Raises: RecipeError
        """
        if late and self.aggregation != "mean":
            raise RecipeError(
                f"method.aggregation = {self.aggregation!r}: robust means have no weights for late replies, "
                "which this schedule keeps; expected mean, or schedule.name=sync, or quorum with late: drop"
            )
        if few and self.aggregation not in ("mean", "median"):
            raise RecipeError(f"{few} may leave too few; expected median", "method.aggregation")
        if self.aggregation == "trimmed_mean" and 0 < self.trim * clients < 1 - ROUNDING:
            raise RecipeError(
                f"method.trim = {self.trim:g}: of {clients} clients a round it cuts off none, which leaves "
                "the plain mean; expected more, or method.trim=0"
            )
        if self.aggregation in ("krum", "multi_krum") and clients < 2 * self.corrupt + 3:
            raise RecipeError(
                f"method.aggregation = {self.aggregation!r} with method.corrupt = {self.corrupt} needs "
                f"{2 * self.corrupt + 3} clients a round or more (2 f + 3), there are {clients}"
            )
        if self.aggregation == "multi_krum" and (self.chosen or 0) > clients:
            raise RecipeError(f"method.chosen = {self.chosen}: there are {clients} clients a round")


def aggregate(vectors: Sequence[Tensor], weights: Sequence[float], options: AggregationOptions) -> Tensor:
    """One tensor of n; `weights` count in the plain mean alone.

    Args:
        vectors: of one shape, [P] or any; the plain mean holds one at a time, the robust ones all.
    Raises: RunError if Krum has too few.
    """
    if options.aggregation == "mean":
        return weighted_mean(vectors, weights)
    stacked = torch.stack(list(vectors))
    if options.aggregation == "median":
        return coordinate_median(stacked)
    if options.aggregation == "trimmed_mean":
        return trimmed_mean(stacked, options.trim)
    chosen = 1 if options.aggregation == "krum" else options.chosen or len(stacked) - options.corrupt
    return multi_krum(stacked, options.corrupt, chosen)


def coordinate_median(vectors: Tensor) -> Tensor:
    """The median of every coordinate: of an even count the mean of the two in the middle.

    Yin et al. 2018, arXiv 1803.01498, Definition 1. (`torch.median` gives the lower of the two.)

    Args:
        vectors: [n, P].
    Returns: [P].
    """
    # Leaves one value of an odd number and two of an even one.
    return _mean_between(vectors, (len(vectors) - 1) // 2)


def trimmed_mean(vectors: Tensor, share: float) -> Tensor:
    """The mean of every coordinate without its floor(share n) smallest and as many largest values.

    Yin et al. 2018, arXiv 1803.01498, Definition 2.

    Args:
        vectors: [n, P].
        share: beta, in [0, 1/2).
    Returns: [P].
    """
    # ROUNDING, because 0.29 * 100 is 28.999999999999996 and must count as 29.
    return _mean_between(vectors, math.floor(share * len(vectors) + ROUNDING))


def _mean_between(vectors: Tensor, cut: int) -> Tensor:
    # The sort also makes the rounding of the sum independent of the order of clients.
    ordered = vectors.sort(dim=0).values[cut : len(vectors) - cut]
    return ordered.to(torch.float64).mean(dim=0).to(vectors.dtype)


def krum_scores(vectors: Tensor, corrupt: int) -> Tensor:
    """Every vector's summed squared distances to its n - f - 2 nearest others.

    Blanchard et al. 2017, arXiv 1703.02757, section 4.

    Args:
        vectors: [n, P].
        corrupt: f, n >= 2 f + 3.
    Returns: [n] float64.
    Raises: RunError if there are fewer than 2 f + 3.
    """
    n = len(vectors)
    if n < 2 * corrupt + 3:
        raise RunError(
            f"krum with f = {corrupt} needs {2 * corrupt + 3} replies or more (2 f + 3), there are {n}"
        )
    exact = vectors.to(torch.float64).flatten(1)
    # Row by row: all pairs at once would take n times the memory of the vectors.
    distances = torch.stack([(exact - row).square().sum(dim=1) for row in exact])
    distances.fill_diagonal_(math.inf)  # no vector is its own neighbour, even where two are equal
    return distances.sort(dim=1).values[:, : n - corrupt - 2].sum(dim=1)


def multi_krum(vectors: Tensor, corrupt: int, chosen: int) -> Tensor:
    """The plain mean of the `chosen` vectors with the lowest scores; of equal scores the first. 1: Krum.

    Args:
        vectors: [n, P].
        corrupt: f, n >= 2 f + 3.
        chosen: q, 1 to n.
    Returns: [P].
    Raises: RunError if there are fewer than 2 f + 3, or than `chosen`.
    """
    if chosen > len(vectors):
        raise RunError(f"multi_krum averages {chosen} replies, there are {len(vectors)}")
    # Back in the given order, so that the order of scores does not change how the sum is rounded.
    best = krum_scores(vectors, corrupt).sort(stable=True).indices[:chosen].sort().values
    return vectors[best].to(torch.float64).mean(dim=0).to(vectors.dtype)


def spectral_filter(points: Tensor, bound: float, draw: Callable[[int], Tensor]) -> Tensor:
    """A mean of n points that outliers cannot pull far, for every sample alone: Cronus' aggregation.

    As long as the points' covariance (1 / n) has an eigenvalue above `bound`, those farthest from the mean
    along its eigenvector go: all at Z times the largest such distance or beyond it, Z drawn afresh with
    density 2 z on [0, 1]. Where that would leave fewer than ceil(n / 2), the nearest ceil(n / 2) stay, and
    it ends. Chang et al. 2019, arXiv 1912.11279; Diakonikolas et al. 2017, arXiv 1703.00893, Algorithm 3.

    Args:
        points: [n, samples, classes].
        bound: of the eigenvalue; infinite: the plain mean.
        draw: how many -> that many Z; see `linear_density`.
    Returns: [samples, classes].
    """
    exact = points.to(torch.float64).transpose(0, 1)
    inliers = torch.ones(exact.shape[:2], dtype=torch.bool, device=points.device)
    least = -(-len(points) // 2)
    # Samples whose filter has not ended yet; each ends by itself.
    open_ = torch.arange(len(exact), device=points.device)
    while len(open_):
        variance, distance = top_direction(exact[open_], inliers[open_])
        cutting = (variance > bound) & (inliers[open_].sum(dim=1) > least)
        open_, distance = open_[cutting], distance[cutting]
        z = draw(len(open_)).to(distance)
        # Strictly inside, and Z is at most 1: the farthest point always goes, so the loop ends.
        inside = distance < z[:, None] * distance.amax(dim=1, keepdim=True)
        # Removed points rank last, so `rank < least` names the nearest of those still kept.
        distance = distance.masked_fill(~inliers[open_], math.inf)
        rank = distance.sort(dim=1, stable=True).indices.argsort(dim=1)
        inliers[open_] &= inside | (rank < least)
    weights = inliers.to(exact.dtype)
    mean = torch.einsum("sn,snc->sc", weights, exact) / weights.sum(dim=1, keepdim=True)
    return mean.to(points.dtype)


def top_direction(points: Tensor, inliers: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue of the covariance (1 / n) of the kept points, and their distances along it.

    Through the points' Gram matrix, which is n x n however many classes there are and has the same
    eigenvalues.

    Args:
        points: [samples, n, classes] float64.
        inliers: [samples, n] bool.
    Returns: [samples], and [samples, n]: |v (x - mean)|, 0 for those not kept.
    """
    counts = inliers.sum(dim=1).to(points.dtype)
    present = points * inliers[..., None]
    mean = present.sum(dim=1) / counts[:, None]
    centred = (points - mean[:, None]) * inliers[..., None]
    gram = centred @ centred.transpose(1, 2) / counts[:, None, None]
    values, vectors = torch.linalg.eigh(gram)
    # eigh may give a tiny negative number where the variance is 0.
    variance = values[:, -1].clamp(min=0)
    # With the Gram matrix's unit eigenvector u, |v (x_i - mean)| is sqrt(n lambda) |u_i|.
    return variance, vectors[..., -1].abs() * (counts * variance).sqrt()[:, None]


def linear_density(stream: torch.Generator) -> Callable[[int], Tensor]:
    """Draws with density 2 z on [0, 1] from a step's stream: square roots of uniform ones."""

    def draw(count: int) -> Tensor:
        return torch.rand(count, generator=stream, device=stream.device, dtype=torch.float64).sqrt()

    return draw
