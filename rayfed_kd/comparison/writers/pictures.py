"""A comparison's pictures: curves of every metric, and the headline over rounds, seconds and MiB."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AXES, MIB, AxisName
from rayfed_kd.comparison.differences import metric_scale
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import metric_title, row_name
from rayfed_kd.comparison.writers.bands import CostBand, bands_by_name, cost_bands_by_name
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.lines import MIB_SENT, Line, lines_figure, times_figure


def write_pictures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write curves-METRIC.png for every metric, and the headline's curves over what it cost.

    times-METRIC.png, over seconds and MiB, is drawn if a clock ran or the study asks for totals;
    against-AXIS-METRIC.png for each axis that the study names in `against`.

    Args:
        comparison: what is drawn.
        folder: where the pictures go.

    Returns: the pictures' paths.
    """
    paths = []
    for metric in comparison.metrics:
        paths.append(folder / f"curves-{metric}.png")
        save_figure(curves_picture(comparison, metric), paths[-1])
    headline = comparison.headline
    for axis in filter(comparison.has_cost, comparison.study.against):
        paths.append(folder / f"against-{axis}-{headline}.png")
        save_figure(against_picture(comparison, headline, axis), paths[-1])
    if comparison.has_clock or comparison.study.totals:
        paths.append(folder / f"times-{headline}.png")
        save_figure(times_figure(_curves_over_time(comparison), metric_title(headline)), paths[-1])
    return paths


def curves_picture(comparison: Comparison, metric: str) -> Figure:
    """A metric by round: the mean over seeds, with a band of one sample deviation.

    Args:
        comparison: what is drawn.
        metric: the metric's column.

    Raises:
        RecipeError: no row has the metric.
    """
    _check_metric(comparison, metric)
    scale, lines = metric_scale(metric), []
    for look, (name, band) in enumerate(bands_by_name(comparison, metric).items()):
        mean, deviation = (scale * values for values in (band.mean, band.deviation))
        lines.append(Line(look, band.rounds.tolist(), mean.tolist(), deviation.tolist(), label=name))
    return lines_figure(lines, "round", metric_title(metric), len(comparison.study.seeds))


def against_picture(comparison: Comparison, metric: str, axis: AxisName) -> Figure:
    """A metric against a cost: the mean over seeds, with a band of one sample deviation.

    A curve has a point for each evaluated round, and a ring at the last one. Both coordinates are means over
    seeds. The axis is logarithmic where costs span more than a decade. A row that has no such cost, as one
    that sends nothing, or one without `privacy` over epsilon, is a dotted line at its last value.

    Args:
        comparison: what is drawn.
        metric: the metric's column.
        axis: a name of `AXES`.

    Raises:
        RecipeError: no row has the metric, or there is no such axis.
    """
    check_names("against", [axis], AXES)
    _check_metric(comparison, metric)
    bands = cost_bands_by_name(comparison, metric, axis)
    costs = [cost for band in bands.values() for cost in band.costs.tolist() if np.nan_to_num(cost) > 0]
    ends = (min(costs), max(costs)) if costs else (0.0, 1.0)
    lines = [
        _cost_line(
            look, f"{name}, {AXES[axis].none}" if band.is_flat else name, band, metric_scale(metric), ends
        )
        for look, (name, band) in enumerate(bands.items())
    ]
    seeds = len(comparison.study.seeds)
    return lines_figure(lines, AXES[axis].title, metric_title(metric), seeds, costs=True)


def _cost_line(look: int, name: str, row: CostBand, scale: float, ends: tuple[float, float]) -> Line:
    mean, deviation = scale * row.band.mean, scale * row.band.deviation
    if row.is_flat:
        return Line(look, ends, (float(mean[-1]),) * 2, label=name, dotted=True)
    # A logarithmic axis has no place for 0: what cost nothing yet has no point on any axis.
    shown = np.nan_to_num(row.costs) > 0
    costs, mean, deviation = row.costs[shown], mean[shown], deviation[shown]
    return Line(look, costs.tolist(), mean.tolist(), deviation.tolist(), label=name)


def _check_metric(comparison: Comparison, metric: str) -> None:
    if metric not in comparison.metrics:
        raise RecipeError(f"no row has {metric}; there are {', '.join(comparison.metrics)}")


def _curves_over_time(comparison: Comparison) -> dict[str, list[dict[str, list[float]]]]:
    """Row's name -> per seed the headline's values, with rounds, simulated and real seconds, and MiB."""
    curves_by_name: dict[str, list[dict[str, list[float]]]] = {}
    for row in comparison.rows:
        for curve in comparison.seed_curves(row, comparison.headline).values():
            axes = {"round": [float(index) for index in curve.rounds]}
            if comparison.has_clock:
                # NaN leaves a gap, where a row without a clock would have no point.
                axes["simulated s"] = [math.nan if cost.sim_s is None else cost.sim_s for cost in curve.costs]
            axes["real s"] = [cost.wall_s for cost in curve.costs]
            axes[MIB_SENT] = [cost.bytes / MIB or math.nan for cost in curve.costs]  # a log axis has no 0
            name = row_name(comparison, row)
            curves_by_name.setdefault(name, []).append({**axes, "value": curve.values})
    return curves_by_name
