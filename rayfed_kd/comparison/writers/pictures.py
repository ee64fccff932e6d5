"""A comparison's pictures: curves of every metric, and the headline over rounds, seconds and MiB."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.figure import Figure

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import MIB
from rayfed_kd.comparison.table_text import metric_title, row_name
from rayfed_kd.comparison.writers.against import against_picture
from rayfed_kd.comparison.writers.bands import bands_by_name
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.figures import MIB_SENT, band_figure, save_figure, times_figure


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
    if metric not in comparison.metrics:
        raise RecipeError(f"no row has {metric}; there are {', '.join(comparison.metrics)}")
    bands = bands_by_name(comparison, metric)
    return band_figure(bands, metric_title(metric), len(comparison.study.seeds))


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
