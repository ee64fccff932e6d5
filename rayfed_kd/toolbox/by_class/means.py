"""One vector for each of some classes: prototypes, mean outputs; and what servers do with label counts.

A class without a vector is no class of zeros. Label counts say who knows a class, and which labels to
generate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext, Context


@dataclass(frozen=True)
class PerClass:
    """One vector for each of some classes: prototypes, mean outputs. The other classes have none, not zeros.

    Attributes:
        classes: [n] int32, ascending, each once; 4 bytes each where they travel.
        values: [n, length] float32, on the same device.
        counts: [n] float32, samples behind each vector, at least 1.
    """

    classes: Tensor
    values: Tensor
    counts: Tensor


def spread(classes: Tensor, values: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """A row for every class, and which rows are values: for losses that look a sample's class up.

    Args:
        classes, values: as in `PerClass`.
        num_classes: C.
    Returns: [C, length]; [C] bool. What a row of a class without a value holds is not to be used.
    """
    rows = values.new_zeros(num_classes, values.shape[1])
    present = torch.zeros(num_classes, dtype=torch.bool, device=values.device)
    rows[classes.long()], present[classes.long()] = values, True
    return rows, present


def class_means(batches: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> PerClass:
    """The mean of the vectors of each class that has one.

    Args:
        batches: [batch, length] vectors, taken without gradient, and [batch] int64, their classes.
        num_classes: C.
    Raises: ValueError if there is no batch.
    """
    sums: tuple[Tensor, Tensor] | None = None
    for rows, labels in batches:
        # A product with one-hot labels: adding by index would sum in any order on a GPU.
        members = F.one_hot(labels, num_classes).to(torch.float64)
        more = members.T @ rows.detach().to(torch.float64), members.sum(0)
        sums = more if sums is None else (sums[0] + more[0], sums[1] + more[1])
    if sums is None:
        raise ValueError("there are no means of nothing; expected at least one batch")
    places = sums[1].nonzero()[:, 0]
    means = sums[0][places] / sums[1][places, None]
    return PerClass(places.int(), means.float(), sums[1][places].float())


def mean_rows(
    model: FlatModule, rows: Callable[[FlatModule, Tensor], Tensor], ctx: ClientContext
) -> PerClass:
    """The mean of what a frozen model makes of all of a client's samples of each class.

    Args:
        rows: the model and images [batch, ...] -> [batch, length].
    """
    with torch.no_grad():
        return class_means(((rows(model, images), labels) for images, labels in ctx.samples()), ctx.classes)


def mean_features(model: FlatModule, ctx: ClientContext) -> PerClass:
    """p_{k,c}: a frozen model's mean features of each class that a client has, over all its samples."""
    return mean_rows(model, FlatModule.features, ctx)


def sample_features(model: FlatModule, ctx: ClientContext) -> tuple[Tensor, Tensor]:
    """A frozen model's features of all of a client's samples, [n, F], and their labels, [n] int64."""
    with torch.no_grad():
        seen = [(model.features(images), labels) for images, labels in ctx.samples()]
    features, labels = (torch.cat(column) for column in zip(*seen, strict=True))
    return features, labels


def drawn_rows(mean: Tensor, triangle: Tensor, number: int, stream: torch.Generator) -> Tensor:
    """[number, L] float64 vectors of a normal distribution, where `stream` lies.

    Args:
        mean: [L].
        triangle: [L (L + 1) / 2], the covariance's upper triangle row by row.
    """
    length, covariance = len(mean), triangle.to(torch.float64)
    upper = torch.triu_indices(length, length, device=triangle.device)
    matrix = covariance.new_zeros(length, length)
    matrix[upper[0], upper[1]] = covariance
    values, vectors = torch.linalg.eigh(matrix + matrix.triu(1).T)
    # Rounding can leave a covariance of few vectors with eigenvalues below 0.
    root = vectors * values.clamp(min=0).sqrt()
    z = torch.randn(number, length, generator=stream, device=stream.device, dtype=torch.float64)
    drawn: Tensor = mean.to(z) + z @ root.T.to(z)
    return drawn


Pooling = Literal["count", "uniform", "literal"]


def pooled(sources: Iterable[PerClass], num_classes: int, pooling: Pooling) -> PerClass:
    """One vector a class from those of several clients; a class that none of them has gets none.

    Args:
        sources: at least one, of equal length.
        num_classes: C.
        pooling: `count`: weights n_{k,c} / N_c. `uniform`: equal weights. `literal`: `count` divided by the
            number of clients that have the class, as FedProto's eq. 6 is printed.
    Returns: with N_c as counts.
    """
    sums: Tensor | None = None
    weights, totals, holders = (torch.zeros(num_classes, dtype=torch.float64) for _ in range(3))
    for source in sources:
        places, counts = source.classes.long(), source.counts.to(torch.float64)
        if sums is None:
            sums = torch.zeros(num_classes, source.values.shape[1], dtype=torch.float64)
        weight = torch.ones_like(counts) if pooling == "uniform" else counts
        # Each class stands once in a source, so adding by index has one order.
        sums[places] += weight[:, None] * source.values.to(torch.float64)
        weights[places] += weight
        totals[places] += counts
        holders[places] += 1
    if sums is None:
        raise ValueError("there is nothing to pool; expected at least one client")
    places = holders.nonzero()[:, 0]
    divisors = weights[places] * (holders[places] if pooling == "literal" else 1)
    return PerClass(places.int(), (sums[places] / divisors[:, None]).float(), totals[places].float())


ClassWeights = Literal["per_sample", "cancelled"]


def class_shares(counts: Tensor) -> Tensor:
    """a_{k,y} = n_k^y / sum_j n_j^y: whose class it is. A class that nobody has is nobody's.

    Args:
        counts: [K, classes], samples by client and class.
    Returns: [K, classes] float32; a column sums to 1, or is 0.
    """
    return counts / counts.sum(0).clamp(min=1)


def drawn_labels(counts: Tensor, number: int, ctx: Context) -> Tensor:
    """[number] int64 labels, class y with probability counts_y / sum; from the step's stream "labels".

    Args:
        counts: [classes], whole numbers, not all 0.
    """
    # Whole numbers: rounded ends could give a class that nobody has.
    ends = counts.cpu().to(torch.int64).cumsum(0)
    shape, stream = (number,), ctx.stream("labels")
    places = torch.randint(int(ends[-1]), shape, generator=stream, device=ctx.device)
    # right: the first class whose end lies above the place; a class without samples has no such place.
    return torch.searchsorted(ends.to(ctx.device), places, right=True)


def drawn_places(labels: Tensor, counts: Tensor, number: int, ctx: Context) -> Tensor:
    """[number] int64 places in a pool whose classes are as `drawn_labels` draws; of a missing class any.

    Args:
        labels: [n] int64 on the CPU, classes of what is in the pool, n at least 1.
        counts: [classes], whole numbers, not all 0.
        ctx: places are from its stream "places".
    Returns: on the CPU.
    """
    wanted, (ordered, places) = drawn_labels(counts, number, ctx).cpu(), labels.sort(stable=True)
    draws = torch.rand(number, generator=ctx.stream("places"), device=ctx.device, dtype=torch.float64)
    first, last = (torch.searchsorted(ordered, wanted, right=side) for side in (False, True))
    first, last = torch.where(first < last, first, 0), torch.where(first < last, last, len(labels))
    return places[first + (draws.cpu() * (last - first)).long()]


def proportional_labels(counts: Tensor, number: int) -> Tensor:
    """[number] int64 labels, ascending, split by counts_y / sum, ends rounded down; nothing is drawn.

    Args:
        counts: [classes], whole numbers, not all 0.
    """
    ends = counts.to(torch.int64).cumsum(0)
    stops = ends * number // ends[-1]
    places = torch.arange(number, device=counts.device)
    return torch.searchsorted(stops, places, right=True)


def weighted_by_class(losses: Tensor, weights: Tensor, form: ClassWeights = "per_sample") -> Tensor:
    """sum_k mean_i a_{k,i} l_{k,i}, scalar; gradient passes to the losses.

    Args:
        losses: [K, batch], client k's model on sample i.
        weights: [K, batch], a_{k,y_i}.
        form: `cancelled` is sum_k (mean_i a_{k,i}) (mean_i l_{k,i}), which the released code of FedGen and
            FedFTG computes by broadcasting: the classes' weights cancel.
    """
    if form == "per_sample":
        return (weights * losses).mean(1).sum()
    return (weights.mean(1) * losses.mean(1)).sum()
