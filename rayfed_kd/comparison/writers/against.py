"""Pictures of a metric against what it cost: bytes, epsilon or seconds, one curve a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rayfed_kd.comparison.comparison import Comparison
from rayfed_kd.comparison.costs import AXES, AxisName
from rayfed_kd.comparison.studies import check_names
from rayfed_kd.comparison.table_text import metric_scale, metric_title
from rayfed_kd.comparison.writers.bands import CostBand, cost_bands_by_name
from rayfed_kd.errors import RecipeError
from rayfed_kd.results.figures import COLOURS
from rayfed_kd.results.panels import ShownFigure

# With the colours 28 looks: more rows than these cannot be told apart anyway.
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (6, 2, 1.5, 2)), (0, (3, 1)))
FEW_DECADES = 200.0  # the largest over the least cost, below which ticks stand at 1, 2 and 5
MANY = 10  # rows
FEW = 30  # points; a curve of fewer has a dot at each


def spans_a_decade(costs: Iterable[float]) -> bool:
    """Whether costs differ by more than ten times, so that a linear axis would press some of them together.

    Args:
        costs: what is not above 0, or not finite, does not count.
    """
    positive = [cost for cost in costs if np.isfinite(cost) and cost > 0]
    return bool(positive) and max(positive) > 10 * min(positive)


def make_logarithmic(axes: Axes, costs: Iterable[float]) -> None:
    """Make a picture's x axis logarithmic, with plain numbers at its ticks.

    Args:
        axes: whose.
        costs: what is drawn over; what is not above 0 does not count.
    """
    positive = [cost for cost in costs if np.isfinite(cost) and cost > 0]
    axes.set_xscale("log")
    # Powers of ten alone would leave one or two ticks on two decades.
    steps = (1.0, 2.0, 5.0) if max(positive) < FEW_DECADES * min(positive) else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def against_picture(comparison: Comparison, metric: str, axis: AxisName) -> ShownFigure:
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
    if metric not in comparison.metrics:
        raise RecipeError(f"no row has {metric}; there are {', '.join(comparison.metrics)}")
    bands = cost_bands_by_name(comparison, metric, axis)
    # As tall as the names need, or the last ones would be cut.
    figure = ShownFigure(figsize=(8.0, max(4.4, 0.3 + 0.175 * len(bands))), layout="constrained")
    axes = figure.add_subplot()
    costs = [cost for band in bands.values() for cost in band.costs]
    if spans_a_decade(costs):
        make_logarithmic(axes, costs)
    for look, (name, band) in enumerate(bands.items()):
        _draw(axes, look, name, band, metric_scale(metric), AXES[axis].none)
    if len(bands) > MANY:  # bands over bands would hide the curves
        for drawn in axes.collections:
            drawn.set_alpha(0.07)
    seeds = len(comparison.study.seeds)
    axes.set(
        xlabel=AXES[axis].title,
        ylabel=metric_title(metric),
        title=f"mean and deviation over {seeds} seeds" if seeds > 1 else "",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, handlelength=3.0)
    return figure


def _draw(axes: Axes, look: int, name: str, row: CostBand, scale: float, none: str) -> None:
    colour = COLOURS[look % len(COLOURS)]
    mean, deviation = scale * row.band.mean, scale * row.band.deviation
    if row.is_flat:
        axes.axhline(mean[-1], color=colour, linestyle=":", linewidth=1.4, label=f"{name}, {none}")
        return
    # A logarithmic axis has no place for 0: what cost nothing yet has no point on any axis.
    shown = np.nan_to_num(row.costs) > 0
    costs, mean, deviation = row.costs[shown], mean[shown], deviation[shown]
    dashes = DASHES[look // len(COLOURS) % len(DASHES)]
    marker = "." if len(costs) < FEW else ""
    axes.plot(costs, mean, color=colour, linestyle=dashes, linewidth=1.4, marker=marker, label=name)
    axes.fill_between(costs, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
    axes.plot(costs[-1:], mean[-1:], color=colour, marker="o", markersize=7, markerfacecolor="none")
