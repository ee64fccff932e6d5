"""What servers do with clients' label counts: who knows a class, and which labels to generate."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rayfed_kd.protocol import Context

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
