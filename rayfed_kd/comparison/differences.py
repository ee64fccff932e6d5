"""Paired differences of two rows: their mean over seeds, its 95 % interval, and what it tells.

Two rows with one seed have the same data, partition and first weights. So their difference, seed by seed,
varies less than either row, and its interval tells what means and deviations of the rows cannot.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rayfed_kd.comparison.studies import Claim
from rayfed_kd.results.names import metric_scale

CONFIDENCE = 0.95
# The seeds that it takes to decide grow with the variance. Its 95 % interval goes up to 8 times the estimate
# with five seeds, to 40 times with three, and to 1,000 times with two: such an advice would be a guess.
FEWEST_SEEDS_FOR_ADVICE = 5
MOST_SEEDS = 1000  # where even so many would not decide, the difference is as good as none

Verdict = Literal["shown", "not shown", "contradicted"]
Row = tuple[str, str]  # (label, evaluated model)


@dataclass(frozen=True)
class Difference:
    """A row's value less another's, over the seeds that both have.

    Attributes:
        by_seed: seed -> difference.
        mean: over seeds.
        deviation: sample deviation over seeds.
        half_width: of the 95 % interval of the mean, by Student's t with seeds - 1 degrees of freedom.
    """

    by_seed: Mapping[int, float]
    mean: float
    deviation: float
    half_width: float

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.mean + self.half_width

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out zero: then the rows' order is more than chance."""
        return not self.low <= 0.0 <= self.high

    @property
    def equal(self) -> bool:
        """Whether both rows have the same number with every seed, as two that compute the same."""
        return not any(self.by_seed.values())

    def verdict(self, margin: float = 0.0) -> Verdict:
        """What the difference says of the claim that it is above minus `margin`.

        Args:
            margin: by how much the first row may be below the second, and still count as equal to it.

        Returns: `shown` if the whole interval is above, `contradicted` if it is below, else `not shown`.
        """
        if self.low > -margin:
            return "shown"
        return "contradicted" if self.high < -margin else "not shown"

    def probability(self, margin: float = 0.0) -> float:
        """The two-sided p value of Student's paired test that the true difference is minus `margin`."""
        error = self.deviation / math.sqrt(len(self.by_seed))
        away = abs(self.mean + margin)
        if not error:
            return float(away == 0.0)
        return float(_beyond(away / error, len(self.by_seed) - 1))

    def seeds_to_decide(self) -> int | None:
        """How many seeds it takes in all until zero is left out, if mean and deviation stay as they are.

        Returns: at least the number that there is; None: not even with `MOST_SEEDS`.
        """
        counts = range(len(self.by_seed), max(len(self.by_seed), MOST_SEEDS) + 1)
        # The half width falls with the number of seeds.
        place = bisect_left(counts, True, key=lambda n: abs(self.mean) > half_width(self.deviation, n))
        return counts[place] if place < len(counts) else None


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, and what our runs say of it.

    Attributes:
        claim: the study's.
        higher, lower: the rows that it is about.
        metric: a metric's column, or `bytes`.
        difference: of the higher row less the lower one; None: fewer than two seeds have both.
        cut: it leaves out evaluations that one of the rows alone has.
    """

    claim: Claim
    higher: Row
    lower: Row
    metric: str
    difference: Difference | None
    cut: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """Shown, not shown or contradicted; None without a difference."""
        return None if self.difference is None else self.difference.verdict(self.margin)

    @property
    def margin(self) -> float:
        """The claim's margin, which has the table's unit, in that of the metric."""
        return self.claim.margin / metric_scale(self.metric)


def after_holm(claims: Sequence[JudgedClaim]) -> list[bool]:
    """Which claims are decided if all of them are to be right together with 95 % confidence.

    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure": the i-th smallest of m p values must
    be at most 0.05 / (m - i + 1), and so must all before it.

    Args:
        claims: those of one table; a claim without a difference is not decided and does not count.
    """
    values = sorted(
        (claim.difference.probability(claim.margin), place)
        for place, claim in enumerate(claims)
        if claim.difference is not None
    )
    decided = [False] * len(claims)
    for smaller, (probability, place) in enumerate(values):
        if probability > (1 - CONFIDENCE) / (len(values) - smaller):
            break
        decided[place] = True
    return decided


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The difference of two rows.

    Args:
        ours, theirs: seed -> value.

    Returns: ours less theirs; None with fewer than two seeds in common, which have no interval.
    """
    by_seed = {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
    if len(by_seed) < 2:
        return None
    mean, deviation = statistics.fmean(by_seed.values()), statistics.stdev(by_seed.values())
    return Difference(by_seed, mean, deviation, half_width(deviation, len(by_seed)))


def half_width(deviation: float, seeds: int) -> float:
    """Half the width of the 95 % interval of a mean over seeds: t s / sqrt(n)."""
    return student_t(seeds - 1) * deviation / math.sqrt(seeds)


@cache
def student_t(degrees: int) -> float:
    """The two-sided 95 % point of Student's t distribution.

    Args:
        degrees: degrees of freedom, at least 1.
    """
    import mpmath

    # 12.71 with one degree of freedom, 1.96 with infinitely many.
    between = (1.9, 13.0)
    return float(
        mpmath.findroot(lambda t: _beyond(t, degrees) - (1 - CONFIDENCE), between, solver="anderson")
    )


def _beyond(t: Any, degrees: int) -> Any:
    """The probability of a value beyond -t or t of Student's t distribution."""
    import mpmath  # torch depends on it; scipy has this as one call, and would be 40 MB more to install

    return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)
