"""A comparison's pictures, and their lines: means over seeds, by round or by bytes, epsilon and seconds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.curves import AXES, AxisName, Curve
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import row_name
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.lines import Line, lines_figure
from rayfed_kd.results.names import metric_scale, metric_title


def write_pictures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write curves-METRIC.png for every metric, and against-AXIS-METRIC.png of the headline over its costs.

    The axes are those that the study names in `against`, simulated seconds where a clock ran, and with
    `totals` real seconds and bytes.

    Args:
        comparison: what is drawn.
        folder: where the pictures go.

    Returns: the pictures' paths.
    """
    paths = []
    for metric in comparison.metrics:
        paths.append(folder / f"curves-{metric}.png")
        save_figure(curves_picture(comparison, metric), paths[-1])
    axes: list[AxisName] = [*comparison.study.against, "sim_s"]
    axes += ["wall_s", "bytes"] if comparison.study.totals else []
    for axis in filter(comparison.has_cost, dict.fromkeys(axes)):
        paths.append(folder / f"against-{axis}-{comparison.headline}.png")
        save_figure(curves_picture(comparison, comparison.headline, axis), paths[-1])
    return paths


def curves_picture(comparison: Comparison, metric: str, axis: AxisName | None = None) -> Figure:
    """A metric by round, or against a cost: the mean over seeds, with a band of one sample deviation.

    Against a cost a curve has a point for each evaluated round, and a ring at the last one. Both coordinates
    are means over seeds. The axis is logarithmic where costs span more than a decade. A row that has no such
    cost, as one that sends nothing, or one without `privacy` over epsilon, is a dotted line at its last
    value.

    Args:
        comparison: what is drawn.
        metric: the metric's column.
        axis: a name of `AXES`; None: rounds.

    Raises:
        RecipeError: no row has the metric, or there is no such axis.
    """
    scale, named = metric_scale(metric), _curves_by_name(comparison, metric)
    if axis is None:
        across = "round"
        lines = [mean_line(look, runs, scale, label=name) for look, (name, runs) in enumerate(named.items())]
    else:
        check_names("against", [axis], AXES)
        across, looks = AXES[axis].title, {name: look for look, name in enumerate(named)}
        lines = lines_over_cost(named, looks, scale, axis)
    seeds = len(comparison.study.seeds)
    return lines_figure(lines, across, metric_title(metric), seeds, costs=axis is not None)


def _curves_by_name(comparison: Comparison, metric: str) -> dict[str, Sequence[Curve]]:
    """The names of the rows that have a metric -> their curves of it, one of each seed."""
    if metric not in comparison.metrics:
        raise RecipeError(f"no row has {metric}; there are {', '.join(comparison.metrics)}")
    curves = {row_name(comparison, row): comparison.seed_curves(row, metric) for row in comparison.rows}
    return {name: list(by_seed.values()) for name, by_seed in curves.items() if by_seed}


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
        drawable = (np.isfinite(costs) & (costs > 0)).all(axis=0)
        values, x = values[:, drawable], costs[:, drawable].mean(axis=0).tolist()
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
