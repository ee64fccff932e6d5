"""Cache slots: the server's latest vector of every client it has seen, and their weighted sum.

OCA (FedKF, section IV-A) and the teacher (KDIA, eq. 10) are sums over all K clients' latest vectors.
The sum is kept running in float64 and changes only by what a round changed, so a round costs
O(cohort), not O(K). Slots are references: a vector is fetched only when its client returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rayfed_kd.protocol import PartRef, Replies


@dataclass(frozen=True)
class Slots:
    """sum_k w_k slot_k over the clients seen so far.

    Attributes:
        total: [P] float64, the running sum.
        weight: sum of the w_k.
        entries: client -> its latest vector, by reference.
        weights: client -> w_k.
    """

    total: Tensor
    weight: float = 0.0
    entries: Mapping[int, PartRef] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_elements: int) -> Slots:
        """No client seen; vectors will be [num_elements]."""
        return cls(torch.zeros(num_elements, dtype=torch.float64))

    def replaced(self, updates: Mapping[int, tuple[PartRef, float]]) -> Slots:
        """The slots after these clients' new vectors and weights; costs O(len(updates)) vectors."""
        total = self.total.clone()
        entries, weights = dict(self.entries), dict(self.weights)
        # In client order, so that the order of arrival does not change how the sum is rounded.
        for client in sorted(updates):
            new, new_weight = updates[client]
            # Taken off with the weight it was added with; `scaled` has scaled both alike.
            if client in entries:
                total.add_(entries[client].load().to(torch.float64), alpha=-weights[client])
            total.add_(new.load().to(torch.float64), alpha=new_weight)
            entries[client], weights[client] = new, new_weight
        # Added afresh and rounded once: of the two sums only that of the vectors drifts over the rounds.
        return Slots(total, math.fsum(weights.values()), entries, weights)

    def after(self, replies: Replies, name: str, weights: Sequence[float]) -> Slots:
        """The slots after an exchange: the part `name` of every reply, with its weight.

        Args:
            replies: all of an exchange.
            name: of the part.
            weights: one a reply, in their order.
        """
        refs = replies.refs(name)
        new = zip(replies.clients, weights, strict=True)
        return self.replaced({client: (refs[client], weight) for client, weight in new})

    def scaled(self, factor: float) -> Slots:
        """The same slots with every weight times `factor`: a weight that shrinks with time (KDIA)."""
        weights = {client: weight * factor for client, weight in self.weights.items()}
        return Slots(self.total * factor, self.weight * factor, self.entries, weights)

    def mean(self, unseen: Tensor | None = None, unseen_weight: float = 0.0) -> Tensor:
        """The weighted mean, [P] float32.

        Args:
            unseen: [P], what every unseen client counts as; None leaves them out.
            unseen_weight: the unseen clients' weights, summed.
        """
        if unseen is None or unseen_weight == 0:
            if not self.entries:
                raise ValueError("no client has a slot yet, and nothing was given for unseen ones")
            return self.total.div(self.weight).to(torch.float32)
        total = self.total.add(unseen.to(torch.float64), alpha=unseen_weight)
        return total.div_(self.weight + unseen_weight).to(torch.float32)

    def reweighted(self, weights: Mapping[int, float]) -> Slots:
        """The same slots with weights of their own, added afresh: every slot is fetched."""
        fresh = Slots.empty(self.total.numel())
        return fresh.replaced({k: (ref, weights[k]) for k, ref in self.entries.items()})
