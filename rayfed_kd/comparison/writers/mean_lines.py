"""Mean curves over seeds, by round or by what they cost, as comparisons and reports draw them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from rayfed_kd.comparison.costs import AXES, AxisName
from rayfed_kd.comparison.curves import Curve
from rayfed_kd.results.charts.lines import Line


def mean_line(
    look: int, curves: Sequence[Curve], scale: float, axis: AxisName | None = None, label: str = ""
) -> Line:
    """The mean over seeds, with a band of one sample deviation if there are several.

    Args:
        look: of the line.
        curves: a metric's, one of each seed.
        scale: what the values are multiplied by.
        axis: the cost that they are drawn over, a mean over seeds, too; None: rounds.
        label: the name in a legend.

    Returns: a point for each round that all seeds evaluated, and over a cost only for those in which each
        seed has a finite one above 0, as a logarithmic axis has no place for 0.
    """
    # A resumed or extended run may have evaluated other rounds than the other seeds.
    rounds = sorted(set.intersection(*(set(curve.rounds) for curve in curves)))
    points = [[curve.at(index) for index in rounds] for curve in curves]
    values, x = scale * np.array([[value for value, _ in row] for row in points]), rounds
    if axis is not None:
        costs = np.array([[cost.along(axis) for _, cost in row] for row in points], dtype=float)
        shown = (np.isfinite(costs) & (costs > 0)).all(axis=0)
        values, x = values[:, shown], costs[:, shown].mean(axis=0).tolist()
    deviation = values.std(axis=0, ddof=1).tolist() if len(curves) > 1 else ()
    return Line(look, x, values.mean(axis=0).tolist(), deviation, label=label)


def lines_over_cost(
    curves_by_name: Mapping[str, Sequence[Curve]], looks: Mapping[str, int], scale: float, axis: AxisName
) -> list[Line]:
    """A line for each series over what it cost. One that has no such cost is dotted, at its last value.

    Args:
        curves_by_name: series -> a metric's curves, one of each seed.
        looks: series -> look.
        scale: what the values are multiplied by.
        axis: the cost.
    """
    lines = {
        name: mean_line(looks[name], curves, scale, axis, name) for name, curves in curves_by_name.items()
    }
    ends = [end for line in lines.values() for end in (*line.x[:1], *line.x[-1:])] or [0.0, 1.0]
    for name, curves in curves_by_name.items():
        if not lines[name].x:
            last = scale * statistics.fmean(curve.values[-1] for curve in curves)
            label = f"{name}, {AXES[axis].none}"
            lines[name] = Line(looks[name], [min(ends), max(ends)], [last, last], label=label, dotted=True)
    return list(lines.values())
