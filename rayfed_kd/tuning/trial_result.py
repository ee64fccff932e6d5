"""What one trial of a search reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayfed_kd.tuning.search_folder import Status
from rayfed_kd.tuning.space import Coefficients


@dataclass(frozen=True)
class TrialResult:
    """What one trial reached.

    Attributes:
        trial: the trial's number.
        coefficients: recipe key -> value.
        values: (round, value) of every evaluation that counts; values in [0, 1].
        rounds: the last round that counts.
        seconds: real seconds in rounds, until then.
        status: finished, stopped, failed, or running if the search has not ended.
        error: why it failed.
    """

    trial: int
    coefficients: Coefficients
    values: Sequence[tuple[int, float]]
    rounds: int
    seconds: float
    status: Status
    error: str | None = None

    @property
    def best(self) -> float | None:
        """The largest value; None without an evaluation."""
        return max((value for _, value in self.values), default=None)

    @property
    def best_round(self) -> int | None:
        """The first round that reached the largest value; None without an evaluation."""
        return max(self.values, key=lambda point: point[1], default=(None, None))[0]

    @property
    def last(self) -> float | None:
        """The last value; None without an evaluation."""
        return self.values[-1][1] if self.values else None
