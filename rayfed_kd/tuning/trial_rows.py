"""A search's trials as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_kd.tuning.folder import Metric, SearchFolder, Status
from rayfed_kd.tuning.spaces import Coefficients


@dataclass(frozen=True)
class TrialRow:
    """One trial of the table.

    Attributes:
        trial: its number.
        coefficients: recipe key -> value.
        values: (round, value) of every evaluation that counts.
        rounds: the last round that counts.
        seconds: in rounds, until then.
        status: finished, stopped, failed, or running when a search is looked at under way.
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
        """The largest value."""
        return max((value for _, value in self.values), default=None)

    @property
    def best_round(self) -> int | None:
        """Where it was first."""
        return max(self.values, key=lambda point: point[1], default=(None, None))[0]

    @property
    def last(self) -> float | None:
        """The last value."""
        return self.values[-1][1] if self.values else None


def trial_rows(folder: SearchFolder, trials: int, metric: Metric) -> list[TrialRow]:
    """The first `trials` trials, from their records and tables."""
    rows = []
    for record in folder.records()[:trials]:
        row = TrialRow(
            trial=record.number,
            coefficients=record.coefficients,
            values=[point for point in folder.values(record.number, metric) if point[0] <= record.round],
            rounds=record.round,
            seconds=folder.seconds(record),
            status=record.status,
            error=record.error,
        )
        rows.append(row)
    return rows


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
