"""Model poisoning: what attackers send instead of their replies, from the honest replies of the exchange.

Pure functions of the honest payloads' mean and deviation, which the attackers are taken to know. They act on
every coordinate alone, so an attack on some rows of a payload is those rows of an attack on all of it.
Cheng et al. 2021 (FedGEMS), Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Honest:
    """What attackers know.

    Attributes:
        mean: of the honest payloads, per coordinate, float64.
        deviation: their population deviation, float64.
        count: how many.
    """

    mean: Tensor
    deviation: Tensor
    count: int

    @classmethod
    def of(cls, payloads: Sequence[Tensor]) -> Honest:
        """From payloads of one shape, added in the given order; one is held at a time."""
        count = len(payloads)
        mean = torch.zeros(payloads[0].shape, dtype=torch.float64)
        for place in range(count):
            mean += payloads[place].to(mean)
        mean /= count
        squares = torch.zeros_like(mean)
        for place in range(count):
            squares += (payloads[place].to(mean) - mean).square()
        return cls(mean, (squares / count).sqrt(), count)


def paf(honest: Honest, scale: float) -> Tensor:
    """Naive poisoning: the honest mean, far away: mu + theta' (FedGEMS eq. 7; Chang et al. 2019).

    Eq. 7 prints a sum over n that it divides by (1 - eps) n; the honest alone are meant.

    Args:
        scale: theta', the same in every coordinate.
    """
    return (honest.mean + scale).to(torch.float32)


def lie(honest: Honest, z: float) -> Tensor:
    """A little is enough: mu + z sigma (FedGEMS eq. 10; Baruch et al. 2019, arXiv 1902.06156).

    Baruch's own code goes the other way: give it a negative z.
    """
    return (honest.mean + z * honest.deviation).to(torch.float32)


def ofom(honest: Honest, scale: float) -> tuple[Tensor, Tensor]:
    """One far, one mean: mu + theta', and the mean of it and the honest (FedGEMS eq. 11; Chang et al.)."""
    far = honest.mean + scale
    return far.to(torch.float32), (honest.mean + (far - honest.mean) / (honest.count + 1)).to(torch.float32)


def lie_z(honest: int, corrupt: int, form: Literal["baruch", "fedgems"]) -> float:
    """The largest z that hides among the honest: Phi(z) is the share that must be farther out.

    Args:
        honest, corrupt: how many of either.
        form: "baruch": n all clients, s = floor(n / 2 + 1) - f, (n - f - s) / (n - f); "fedgems": eq. 8 and
            9 with n the honest alone, (n - s) / n. With one attacker of 16 these give -0.084 and 0.084:
            hardly an attack.
    Returns: z; minus or plus infinity where the share is 0 or less, or 1 or more.
    """
    n = honest + corrupt if form == "baruch" else honest
    supporters = math.floor(n / 2 + 1) - corrupt
    share = (n - corrupt - supporters) / (n - corrupt) if form == "baruch" else (n - supporters) / n
    if not 0 < share < 1:
        return math.copysign(math.inf, share - 0.5)
    return NormalDist().inv_cdf(share)
