"""Sums that hosts send in the place of their clients' parts, under `local.sum_replies`.

    host of a group g    S_g = sum over its clients of n_k w_k, in client order, float64
    server               w <- (sum over groups of S_g) / (sum over all clients of n_k)

Without the option the server adds all n_k w_k one after another. Both add in float64 and round to float32
once, at the end. Only the order of the additions differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rayfed_kd.errors import RunError
from rayfed_kd.models.vectors import WeightedSum


class GroupSum:
    """A reference to a group's sums: part -> [..] float64. All replies of the group share this object.

    Args:
        handle: a `Handle` on the sums by the parts' names.
        clients: who is in them.
    """

    def __init__(self, handle: Any, clients: Sequence[int]) -> None:
        self._handle, self.clients, self._copied = handle, tuple(clients), False

    def resolve(self) -> Mapping[str, Any]:
        """The sums by name. Read-only, possibly shared memory: copy before computing."""
        arrays: Mapping[str, Any] = self._handle.resolve()
        return arrays

    def own(self) -> GroupSum:
        """This object: nothing keeps it beyond its round."""
        return self

    def copied(self, publish: Callable[[Mapping[str, Any]], Any]) -> GroupSum:
        """This object, on a copy that `publish` made once, however many of the group's replies ask for it."""
        if not self._copied:
            self._handle, self._copied = publish(self.resolve()), True
        return self


class SummedReply(NamedTuple):
    """Where a reply's parts went.

    Attributes:
        group: the sums that they are in.
        weights: part -> n_k, by which the host multiplied it.
    """

    group: GroupSum
    weights: Mapping[str, float]


def sum_of_groups(replies: Sequence[Any], name: str, counts: Sequence[float]) -> Tensor:
    """Add the sums of a part, group after group in client order.

    Args:
        replies: all `ReceivedReply`s of an exchange, in client order; each was summed.
        name: of the part.
        counts: what the server weighs the replies by, one each.
    Returns: sum_k n_k w_k, float64.
    Raises: RunError if a host weighed a reply otherwise, or the groups' clients are not those that replied;
        ValueError if there is no reply, or there are not as many counts.
    """
    if len(replies) != len(counts) or not counts:
        raise ValueError(f"{len(replies)} replies and {len(counts)} weights: expected as many, at least one")
    groups: dict[int, GroupSum] = {}
    for reply, count in zip(replies, counts, strict=True):
        assert reply.in_sum is not None
        if name not in reply.in_sum.weights:
            raise RunError(
                f"{reply.origin}: the reply has no {name!r}, which the server's part of the method averages; "
                f"there are {', '.join(sorted(reply.in_sum.weights)) or 'no sums'}"
            )
        used = reply.in_sum.weights[name]
        if used != count:
            raise RunError(
                f"{reply.origin}: the server weighs {name!r} by {count:g}, and its host has weighed it by "
                f"{used:g}, as the method declares it; expected Averaged(..., by=...) to name what the "
                "server weighs by, or local.sum_replies=off"
            )
        groups.setdefault(id(reply.in_sum.group), reply.in_sum.group)
    clients = sorted(client for group in groups.values() for client in group.clients)
    if clients != [reply.client for reply in replies]:
        raise RunError(
            f"{replies[0].origin}: sums of clients {clients} came for the replies of "
            f"{[reply.client for reply in replies]}; expected the same clients, or local.sum_replies=off"
        )
    total: WeightedSum | None = None
    for group in groups.values():
        array = group.resolve()[name]
        total = total or WeightedSum(torch.Size(array.shape))
        if total.total.shape != array.shape:  # else torch would broadcast one to the other
            raise RunError(
                f"the replies' {name!r} have the shapes {list(total.total.shape)} and {list(array.shape)}, "
                f"the latter of clients {list(group.clients)}; a mean needs equal ones"
            )
        # Only to be copied from: torch would warn of memory that it may not write to.
        total.add(torch.from_numpy(np.require(array, requirements="W")), 1.0)
    assert total is not None
    return total.total
