"""One vector for each of some classes: prototypes, mean outputs. A class without one is no class of zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.protocol import ClientContext


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


class ClassMeans:
    """Means of vectors by class, as batches of them come in.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        self._classes = num_classes
        self.clear()

    def clear(self) -> None:
        """Forgets what was added."""
        self._sums: Tensor | None = None
        self._counts: Tensor | None = None

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Adds vectors.

        Args:
            rows: [batch, length], taken without gradient.
            labels: [batch] int64, their classes.
        """
        # A product with one-hot labels: adding by index would sum in any order on a GPU.
        members = F.one_hot(labels, self._classes).to(torch.float64)
        sums, counts = members.T @ rows.detach().to(torch.float64), members.sum(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._counts = counts if self._counts is None else self._counts + counts

    def result(self) -> PerClass:
        """The mean of each class that had a vector.

        Raises: ValueError if nothing was added.
        """
        if self._sums is None or self._counts is None:
            raise ValueError("there are no means of nothing; expected at least one batch")
        places = self._counts.nonzero()[:, 0]
        means = self._sums[places] / self._counts[places, None]
        return PerClass(places.int(), means.float(), self._counts[places].float())


def mean_rows(
    model: FlatModule, rows: Callable[[FlatModule, Tensor], Tensor], ctx: ClientContext
) -> PerClass:
    """The mean of what a frozen model makes of all of a client's samples of each class.

    Args:
        rows: the model and images [batch, ...] -> [batch, length].
    """
    means = ClassMeans(ctx.classes)
    with torch.no_grad():
        for images, labels in ctx.samples():
            means.add(rows(model, images), labels)
    return means.result()


def mean_features(model: FlatModule, ctx: ClientContext) -> PerClass:
    """p_{k,c}: a frozen model's mean features of each class that a client has, over all its samples."""
    return mean_rows(model, FlatModule.features, ctx)


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
