"""Epsilon, from the package dp-accounting: Renyi differential privacy at integer orders.

A round's releases are Gaussian mechanisms on one cohort's messages: n of multiplier z are one of z / sqrt(n).
How the cohort was drawn decides what its size hides, and what neighbouring data sets are:

    Poisson, q < 1          add or remove one client; sensitivity S; amplified by sampling
    all clients, q = 1      add or remove one client's messages; sensitivity S; nothing is amplified
    a fixed cohort, q < 1   replace one client by another; sensitivity 2 S; amplified by sampling without
                            replacement (Wang, Balle, Kasiviswanathan 2019, arXiv 1808.00087, Theorem 27)

The local epsilon is that of a server which sees a client's single messages, each with a share 1/m of the
noise's variance: replace the client's data, sensitivity 2 S, nothing is amplified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from rayfed_kd.errors import optional_package
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.timing import cohort_size, sampling_rate

# Integers: between them, libraries compute different bounds.
ORDERS = (*range(2, 65), 80, 96, 128, 256, 512)

Cohort = Literal["poisson", "all", "fixed"]
RELATIONS = {
    "poisson": "add or remove one client",
    "all": "add or remove one client's messages",
    "fixed": "replace one client",
}


def require_accountant() -> Any:
    """The package dp_accounting.

    Raises: RecipeError if it is not installed.
    """
    with optional_package("privacy: dp-accounting", "privacy"):
        import dp_accounting
    return dp_accounting


def accountant_name() -> str:
    """The accountant and its version, as `dp-accounting 0.6.0, RDP at integer orders`."""
    return f"dp-accounting {version('dp-accounting')}, RDP at integer orders"


@dataclass(frozen=True)
class Mechanism:
    """One Gaussian release of a round, and how its cohort was drawn.

    Attributes:
        multiplier: z, the noise's deviation over the norm bound of one client; above 0.
        cohort: how clients are drawn.
        clients, size: K, and m of a fixed cohort.
        rate: q.
    """

    multiplier: float
    cohort: Cohort
    clients: int
    size: int
    rate: float

    @classmethod
    def of(cls, recipe: Recipe) -> Mechanism:
        """Of a recipe with `privacy`."""
        assert recipe.privacy is not None
        clients, size, rate = recipe.partition.clients, cohort_size(recipe), sampling_rate(recipe)
        cohort: Cohort = "all" if rate == 1 else "poisson" if recipe.sampling.poisson else "fixed"
        return cls(recipe.privacy.noise_multiplier, cohort, clients, size, rate)

    @property
    def sampling(self) -> str:
        """How clients are drawn, in a few words."""
        return {
            "poisson": f"Poisson, q = {self.rate:g}",
            "all": f"all {self.clients} clients",
            "fixed": f"{self.size} of {self.clients} clients without replacement",
        }[self.cohort]

    def epsilon(self, rounds: Mapping[int, int], delta: float) -> float:
        """The central epsilon of an observer of the noised sums.

        Args:
            rounds: n -> how many rounds had n releases.
            delta: between 0 and 1.
        Returns: infinite if there is no noise and there was a release.
        """
        return _epsilon([(self._curve(releases), count) for releases, count in rounds.items()], delta)

    def local_epsilon(self, releases: int, expected: float, delta: float) -> float:
        """The epsilon of an observer of a client's own messages.

        Args:
            releases: that the client took part in.
            expected: m, by which the noise's variance is shared.
            delta: between 0 and 1.
        """
        share = self.multiplier / (2 * math.sqrt(expected))
        return _epsilon([(_curve("all", share, 1, 1, 1.0), releases)], delta)

    def _curve(self, releases: int) -> tuple[float, ...]:
        multiplier = self.multiplier / math.sqrt(releases)
        if self.cohort == "fixed":  # another client's vector lies up to 2 S away
            multiplier /= 2
        return _curve(self.cohort, multiplier, self.clients, self.size, self.rate)


@cache
def _curve(cohort: Cohort, multiplier: float, clients: int, size: int, rate: float) -> tuple[float, ...]:
    """The Renyi divergence of one round at each of `ORDERS`."""
    if multiplier == 0:
        return (math.inf,) * len(ORDERS)
    package = require_accountant()
    relation = package.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = package.GaussianDpEvent(multiplier)
    if cohort == "poisson":
        event = package.PoissonSampledDpEvent(rate, event)
    elif cohort == "fixed":
        relation = package.NeighboringRelation.REPLACE_ONE
        event = package.SampledWithoutReplacementDpEvent(clients, size, event)
    accountant = package.rdp.RdpAccountant(list(ORDERS), relation)
    accountant.compose(event)
    # Sampling never adds to what is learned (the divergence is quasi-convex), but Theorem 27's bound may.
    return tuple(min(float(r), a / (2 * multiplier**2)) for r, a in zip(accountant.rdp, ORDERS, strict=True))


def _epsilon(curves: list[tuple[tuple[float, ...], int]], delta: float) -> float:
    curves = [(curve, count) for curve, count in curves if count]
    total = [math.fsum(curve[place] * count for curve, count in curves) for place in range(len(ORDERS))]
    if all(map(math.isinf, total)):
        return math.inf
    if not curves:
        return 0.0
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    return float(compute_epsilon(ORDERS, total, delta)[0])
