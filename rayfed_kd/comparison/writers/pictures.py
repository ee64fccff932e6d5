"""A comparison's pictures: curves of every metric, and the headline over bytes, epsilon and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AXES, AxisName
from rayfed_kd.comparison.curves import Curve
from rayfed_kd.comparison.differences import metric_scale
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import metric_title, row_name
from rayfed_kd.comparison.writers.mean_lines import lines_over_cost, mean_line
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.lines import lines_figure


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
        save_figure(against_picture(comparison, comparison.headline, axis), paths[-1])
    return paths


def curves_picture(comparison: Comparison, metric: str) -> Figure:
    """A metric by round: the mean over seeds, with a band of one sample deviation.

    Args:
        comparison: what is drawn.
        metric: the metric's column.

    Raises:
        RecipeError: no row has the metric.
    """
    scale, named = metric_scale(metric), _curves_by_name(comparison, metric)
    lines = [mean_line(look, curves, scale, label=name) for look, (name, curves) in enumerate(named.items())]
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
    named = _curves_by_name(comparison, metric)
    looks = {name: look for look, name in enumerate(named)}
    lines, seeds = lines_over_cost(named, looks, metric_scale(metric), axis), len(comparison.study.seeds)
    return lines_figure(lines, AXES[axis].title, metric_title(metric), seeds, costs=True)


def _curves_by_name(comparison: Comparison, metric: str) -> dict[str, Sequence[Curve]]:
    """The names of the rows that have a metric -> their curves of it, one of each seed."""
    if metric not in comparison.metrics:
        raise RecipeError(f"no row has {metric}; there are {', '.join(comparison.metrics)}")
    curves = {row_name(comparison, row): comparison.seed_curves(row, metric) for row in comparison.rows}
    return {name: list(by_seed.values()) for name, by_seed in curves.items() if by_seed}
