"""Vectors of weights with each matrix as its factors of lower rank: what FedKD sends.

A layer's weights are a matrix of one row for each output: [out, in] of a linear layer, [out, height width in]
of a convolution. M, P' x Q', is sent as its K largest singular values with their vectors, K (P' + Q' + 1)
numbers, where these are fewer than its P' Q' elements; otherwise as it is, and so is all that is no matrix.

Wu, Wu, Lyu, Huang, Xie 2022, Nature Communications 13, 2032, arXiv 2108.13323, eqs. 6 to 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import Message, weighted_mean

AS_IT_IS = -1  # in the place of a rank


class MatrixPlace(NamedTuple):
    """Where in a vector a matrix lies, row after row, and how many rows it has."""

    start: int
    stop: int
    rows: int


class LowRank(NamedTuple):
    """A vector as factors, in what travels.

    Attributes:
        numbers: [n] float32: of each matrix U, then sigma, then V', or all its elements; of each stretch
            between matrices its elements; in the vector's order.
        ranks: [matrices] int32, K of each matrix; 0: it is all zeros and has no numbers; -1: as it is.
    """

    numbers: Tensor
    ranks: Tensor


def matrix_places(model: FlatModule) -> tuple[MatrixPlace, ...]:
    """The weight matrices of an architecture: its parameters of two or more dimensions, in order."""
    places, start = [], 0
    for parameter in model.parameters():
        stop = start + parameter.numel()
        if parameter.dim() > 1:
            places.append(MatrixPlace(start, stop, parameter.shape[0]))
        start = stop
    return tuple(places)


def needed_rank(singular: Tensor, energy: float) -> int:
    """The smallest K whose share sum_{i<=K} sigma_i^2 / sum sigma_i^2 is above `energy`; all if none is.

    Args:
        singular: [n], sigma, falling.
        energy: T, in [0, 1].
    Returns: 0 if all of sigma is 0.
    """
    # On the CPU: torch has no running sum of floats on a GPU that repeats bit for bit.
    squares = singular.to("cpu", torch.float64).square()
    sums = squares.cumsum(0)
    if not len(sums) or not sums[-1] > 0:
        return 0
    enough = (sums[:-1] / sums[-1] > energy).nonzero()
    # The released code's search, which gives up before the last K, leaves 0: it sends such a matrix as zeros.
    return int(enough[0]) + 1 if len(enough) else len(sums)


def to_low_rank(vector: Tensor, places: Sequence[MatrixPlace], energy: float) -> LowRank:
    """A vector's matrices by their largest singular values, the rest as it is.

    Args:
        vector: [P] float32.
        places: of the matrices, ascending.
        energy: T; see `needed_rank`.
    """
    parts, ranks, start = [], [], 0
    for place in places:
        parts.append(vector[start : place.start])
        rank, numbers = _factors(vector[place.start : place.stop].view(place.rows, -1), energy)
        ranks.append(rank)
        parts.append(numbers)
        start = place.stop
    return LowRank(torch.cat([*parts, vector[start:]]), torch.tensor(ranks, dtype=torch.int32))


def from_low_rank(sent: LowRank, places: Sequence[MatrixPlace]) -> Tensor:
    """The vector that was sent, [P] float32; where a matrix has fewer values than it needs, an approximation.

    Args:
        sent: from `to_low_rank`, on one device.
        places: the same as there.
    """
    parts, start, read = [], 0, 0
    for place, rank in zip(places, sent.ranks.tolist(), strict=True):
        between = place.start - start
        size, rows = place.stop - place.start, place.rows
        parts.append(sent.numbers[read : read + between])
        read += between
        count = size if rank == AS_IT_IS else rank * (rows + size // rows + 1)
        parts.append(_matrix(sent.numbers[read : read + count], rank, rows, size // rows))
        read += count
        start = place.stop
    return torch.cat([*parts, sent.numbers[read:]])


def _factors(matrix: Tensor, energy: float) -> tuple[int, Tensor]:
    """A matrix's rank, and its numbers."""
    rows, columns = matrix.shape
    if not matrix.isfinite().all():  # as it is, for the server to refuse it as any reply that is not finite
        return AS_IT_IS, matrix.flatten()
    # In float64: the share of energy, and with it the rank, should not depend on rounding.
    u, singular, v = torch.linalg.svd(matrix.to(torch.float64), full_matrices=False)
    rank = needed_rank(singular, energy)
    if rank * (rows + columns + 1) >= rows * columns:
        return AS_IT_IS, matrix.flatten()
    factors = (u[:, :rank], singular[:rank], v[:rank])
    return rank, torch.cat([factor.flatten() for factor in factors]).to(matrix.dtype)


def _matrix(numbers: Tensor, rank: int, rows: int, columns: int) -> Tensor:
    """The reverse, as one stretch, [rows columns]."""
    if rank == AS_IT_IS:
        return numbers
    u, singular, v = torch.split(numbers.to(torch.float64), [rows * rank, rank, rank * columns])
    product = (u.view(rows, rank) * singular) @ v.view(rank, columns)
    return product.flatten().to(numbers.dtype)


@dataclass(frozen=True)
class Replica:
    """A client's copy of a vector that all clients keep by adding the same updates.

    Attributes:
        vector: [P]; [0] before the first message.
        version: how many updates it has; -1 before the first message.
    """

    vector: Tensor
    version: int = -1

    def brought_up(self, message: Message, places: Sequence[MatrixPlace]) -> Replica:
        """The copy with what a message of `Replicated.message` brings; `places` are of its matrices."""
        version = int(message["version"])
        if "whole" in message:
            return Replica(message["whole"].clone(), version)
        if version == self.version:
            return self
        # On the CPU, where the server adds the same numbers: all copies are equal to the bit.
        mean = LowRank(message["mean"].cpu(), message["mean_ranks"].cpu())
        return Replica(self.vector + from_low_rank(mean, places).to(self.vector.device), version)


@dataclass(frozen=True)
class Replicated:
    """The server's side of it.

    Attributes:
        vector: [P].
        version: how many updates it has.
        last: the last update, as it travels; None before the first.
        versions: client -> the version that it has; others have none.
    """

    vector: Tensor
    version: int
    last: LowRank | None
    versions: Mapping[int, int]

    def message(self, client: int, **numbers: float) -> Message:
        """What brings a client's copy up: nothing, the last update, or the whole vector, and `numbers`."""
        parts, known = {}, self.versions.get(client)
        if known == self.version - 1 and self.last is not None:
            parts = {"mean": self.last.numbers, "mean_ranks": self.last.ranks}
        elif known != self.version:
            parts["whole"] = self.vector
        return Message(**parts, version=self.version, **numbers)

    def updated(
        self,
        changes: Mapping[int, LowRank],
        weights: Sequence[float],
        places: Sequence[MatrixPlace],
        energy: float,
    ) -> Replicated:
        """The next version: with the mean of what clients sent, in the form in which they will receive it.

        Args:
            changes: client -> what it sent; all of them have this version.
            weights: one a client, in the same order.
            places: of the vector's matrices.
            energy: T, for the mean.
        """
        mean = weighted_mean([from_low_rank(change, places) for change in changes.values()], weights)
        sent = to_low_rank(mean, places, energy)
        versions = {**self.versions, **dict.fromkeys(changes, self.version)}
        return Replicated(self.vector + from_low_rank(sent, places), self.version + 1, sent, versions)
