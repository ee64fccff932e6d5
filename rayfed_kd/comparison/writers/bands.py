"""Mean curves over seeds, as pictures and TensorBoard show them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rayfed_kd.comparison.comparison import Comparison, Row
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
    bands = {row_name(comparison, row): _band(comparison, row, metric) for row in comparison.rows()}
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
