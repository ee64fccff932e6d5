"""Mean outputs by label, and learning from the other clients': what FD is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rayfed_kd.models.flat_module import FlatModule
from rayfed_kd.toolbox.by_class.means import PerClass


def means_of_others(
    latest: Mapping[int, PerClass], clients: Iterable[int], num_classes: int, *, exclude_self: bool = True
) -> dict[int, PerClass]:
    """For each of some clients the plain mean of all others' vectors, class by class.

    Args:
        latest: client -> its vectors of length C.
        clients: whom the means are for.
        num_classes: C.
        exclude_self: False: of all clients' vectors, its own as well.
    Returns: client -> means, of the classes that another client has; counts are the numbers of such clients.
    """
    # In float64, so that taking a client's own from the sum leaves the sum of the others.
    sums, holders = torch.zeros(num_classes, num_classes, dtype=torch.float64), torch.zeros(num_classes)
    for client in sorted(latest):
        places = latest[client].classes.long()
        sums[places] += latest[client].values
        holders[places] += 1
    means = {}
    for client in clients:
        others, number = sums.clone(), holders.clone()
        if exclude_self and client in latest:
            places = latest[client].classes.long()
            others[places] -= latest[client].values
            number[places] -= 1
        known = number.nonzero()[:, 0]
        values = (others[known] / number[known, None]).float()
        means[client] = PerClass(known.int(), values, number[known])
    return means


def label_distillation(logits: Tensor, labels: Tensor, rows: Tensor, present: Tensor) -> Tensor:
    """H(q_y, softmax(logits)), mean over the batch; 0 for samples whose label has no target.

    Args:
        logits: [batch, C]; gradient passes.
        labels: [batch] int64, y.
        rows: [C, C], a target distribution q a label; read only where there is one.
        present: [C] bool, whether there is one.
    """
    entropies = -(rows[labels] * logits.log_softmax(1)).sum(1)
    return torch.where(present[labels], entropies, 0.0).mean()


def probabilities(model: FlatModule, images: Tensor) -> Tensor:
    """The softmax of a model's logits, [batch, C]."""
    return model(images).softmax(1)
