"""Mean curves over seeds, as pictures and TensorBoard show them."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

import numpy as np

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AxisName
from rayfed_kd.comparison.differences import Row
from rayfed_kd.comparison.table_text import row_name

Array = np.ndarray[Any, Any]


class Band(NamedTuple):
    """A row's mean curve and its sample deviation over seeds, each [evaluated rounds].

    Attributes:
        rounds: the rounds that all seeds evaluated.
        mean: the metric's mean over seeds.
        deviation: its sample deviation; zeros for one seed.
    """

    rounds: Array
    mean: Array
    deviation: Array


def bands_by_name(comparison: Comparison, metric: str) -> dict[str, Band]:
    """The bands of all rows that have the metric, by the rows' names.

    Args:
        comparison: whose rows.
        metric: the metric's column.
    """
    bands = {row_name(comparison, row): _band(comparison, row, metric) for row in comparison.rows}
    return {name: band for name, band in bands.items() if len(band.rounds)}


def _band(comparison: Comparison, row: Row, metric: str) -> Band:
    curves = list(comparison.seed_curves(row, metric).values())
    if not curves:
        return Band(np.zeros(0), np.zeros(0), np.zeros(0))
    # A resumed or extended run may have evaluated other rounds than the other seeds.
    common = sorted(set.intersection(*(set(curve.rounds) for curve in curves)))
    values = np.array([[curve.values[curve.rounds.index(r)] for r in common] for curve in curves])
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(common))
    return Band(np.array(common), values.mean(axis=0), deviation)


class CostBand(NamedTuple):
    """A row's band, and what its rounds had cost.

    Attributes:
        band: by round.
        costs: [evaluated rounds], the mean over seeds in the axis' unit; NaN where a run has no such cost, or
            an infinite one.
    """

    band: Band
    costs: Array

    @property
    def is_flat(self) -> bool:
        """Whether the row has no cost of this kind in any round: it is drawn as a line at its last value."""
        return not (np.nan_to_num(self.costs) > 0).any()


def cost_bands_by_name(comparison: Comparison, metric: str, axis: AxisName) -> dict[str, CostBand]:
    """The bands of all rows that have the metric with their rounds' costs, by the rows' names.

    Args:
        comparison: whose rows.
        metric: the metric's column.
        axis: which cost.
    """
    bands = {}
    for row in comparison.rows:
        band = _band(comparison, row, metric)
        if len(band.rounds):
            costs = _mean_costs(comparison, row, metric, axis, band.rounds)
            bands[row_name(comparison, row)] = CostBand(band, costs)
    return bands


def _mean_costs(comparison: Comparison, row: Row, metric: str, axis: AxisName, rounds: Array) -> Array:
    means = []
    for index in rounds.tolist():
        seeds = [
            curve.costs[curve.rounds.index(index)].along(axis)
            for curve in comparison.seed_curves(row, metric).values()
        ]
        known = [cost for cost in seeds if cost is not None and np.isfinite(cost)]
        means.append(statistics.fmean(known) if len(known) == len(seeds) else np.nan)
    return np.array(means)
