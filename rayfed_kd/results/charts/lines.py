"""Curves: by round, by second or by what they cost; and, for a paper's column, intervals of differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from matplotlib import rcParams, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from rayfed_kd.results.charts.figure import COLOURS, DASHES, FEW, MARKS, Panels, ShownFigure, drawable
from rayfed_kd.results.names import TITLES, metric_scale

ROW = 0.17  # inches of a line of a legend, and of an interval
LOGGED_PER_ROW = 4  # panels side by side in the picture of what a method logged
FEW_DECADES = 200.0  # the largest over the least cost, below which ticks stand at 1, 2 and 5
MANY = 10  # lines with bands


@dataclass(frozen=True)
class Line:
    """A series' points, and the number of its look: colour, then dashes.

    Attributes:
        look: from 0.
        x, y: equally many.
        deviation: half the width of a band around the line, equally many; empty: there is no band.
        label: its name in the legend.
        dotted: whether it is a reference, and no curve of points.
    """

    look: int
    x: Sequence[float]
    y: Sequence[float]
    deviation: Sequence[float] = ()
    label: str = field(default="", kw_only=True)
    dotted: bool = field(default=False, kw_only=True)


def draw_lines(
    axes: Axes,
    lines: Sequence[Line],
    across: str,
    *,
    costs: bool = False,
    palette: Sequence[str] = COLOURS,
    shade: float = 0.18,
) -> None:
    """Draw lines in order, the last one on top.

    Args:
        axes: where to draw.
        lines: what to draw.
        across: the axis' label; with "round" its ticks are whole numbers.
        costs: whether a line is drawn over what it cost: it has a ring at its end, and the axis is
            logarithmic where costs span more than a decade.
        palette: colours by look.
        shade: how opaque bands are.
    """
    if costs and spans_a_decade(every := [cost for line in lines for cost in line.x]):
        make_logarithmic(axes, every)
    for line in lines:
        colour = palette[line.look % len(palette)]
        mark = MARKS[line.look // (len(palette) * len(DASHES)) % len(MARKS)]
        dashes = "1 2" if line.dotted else DASHES[line.look // len(palette) % len(DASHES)]
        y = drawable(line.y)
        axes.plot(
            line.x,
            y,
            color=colour,
            label=line.label or None,
            linestyle=(0, [float(dash) for dash in dashes.split()]) if dashes else "-",
            linewidth=1.4,
            marker=mark or ("." if len(line.x) < FEW and not line.dotted else ""),
            markersize=3 if mark else None,
        )
        if costs and not line.dotted:
            axes.plot(line.x[-1:], y[-1:], "o", color=colour, markersize=7, markerfacecolor="none")
        if len(line.deviation):
            half = drawable(line.deviation)
            axes.fill_between(line.x, y - half, y + half, color=colour, alpha=shade, linewidth=0)
    axes.set_xlabel(across)
    if across == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


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


def lines_figure(
    lines: Sequence[Line], across: str, title: str, seeds: int, *, costs: bool = False
) -> ShownFigure:
    """Mean curves of several rows, with a band of one sample deviation over seeds, and a legend.

    Args:
        lines: with labels.
        across: as `draw_lines` takes it.
        title: of the metric.
        seeds: the number of seeds, for the heading.
        costs: as `draw_lines` takes it.
    """
    # As tall as the names need, or the last ones would be cut.
    figure = ShownFigure(figsize=(8.0, max(4.4, 0.3 + 0.175 * len(lines))), layout="constrained")
    axes = figure.add_subplot()
    # Many bands over bands would hide the curves.
    draw_lines(axes, lines, across, costs=costs, shade=0.18 if len(lines) <= MANY else 0.07)
    axes.set(ylabel=title, title=f"mean and deviation over {seeds} seeds" if seeds > 1 else "")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8, handlelength=3.0)
    return figure


def curves_figure(metrics: pa.Table) -> Figure | None:
    """AMP, FM, WLP and the official test by round, a line per model (FedKF's Fig. 5).

    Args:
        metrics: the table `metrics`. A metric without values has no panel.
    Returns: None if no metric has a value.
    """
    rows = metrics.to_pylist()
    drawn = [m for m in TITLES if m != "ua" and any(row[m] is not None for row in rows)]
    if not drawn:
        return None
    models = sorted({row["model"] for row in rows})
    panels = Panels(len(drawn), len(drawn), (4.2, 3.4), legend=tuple(models))
    for axes, metric in zip(panels.axes, drawn, strict=True):
        lines = []
        for look, model in enumerate(models):
            points = [row for row in rows if row["model"] == model and row[metric] is not None]
            values = [metric_scale(metric) * row[metric] for row in points]
            lines.append(Line(look, [row["round"] for row in points], values, label=model))
        draw_lines(axes, lines, "round")
        axes.set_title(TITLES[metric])
        axes.grid(alpha=0.3)
    panels.figure.legend(*panels.axes[0].get_legend_handles_labels(), loc="upper right", frameon=False)
    return panels.figure


def logged_figure(logged: Mapping[int, Mapping[str, float]]) -> Figure:
    """Everything that a method logged, by round: losses, and KDIA's variances of frequencies (Fig. 5b).

    Args:
        logged: round -> name -> mean over the round.
    """
    names = sorted({name for values in logged.values() for name in values})
    panels = Panels(len(names), LOGGED_PER_ROW, (3.2, 2.5))
    for axes, name in zip(panels.axes, names, strict=True):
        rounds = [index for index, values in logged.items() if name in values]
        draw_lines(axes, [Line(0, rounds, [logged[index][name] for index in rounds])], "round")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        axes.set_xlabel("")
    for axes in panels.axes[-LOGGED_PER_ROW:]:
        axes.set_xlabel("round", fontsize=8)
    return panels.figure


class Interval(NamedTuple):
    """A row's difference: mean and half the width of its interval; whether that leaves out zero."""

    name: str
    mean: float
    half_width: float
    decided: bool


def palette() -> Sequence[str]:
    """The colours in use: those of matplotlib's style in force, or ours where it is matplotlib's own."""
    cycle = rcParams["axes.prop_cycle"]
    colours: Sequence[str] = cycle.by_key().get("color", COLOURS)
    return COLOURS if cycle == rcParamsDefault["axes.prop_cycle"] else colours


def column_lines(lines: Sequence[Line], title: str, width: float) -> ShownFigure:
    """Mean curves by round, with a band of one sample deviation.

    Args:
        lines: with labels.
        title: of the metric.
        width: of the figure, inches.
    """
    columns = 2 if max(len(line.label) for line in lines) * 0.06 + 0.4 < width / 2 else 1
    legend = ROW * -(-len(lines) // columns)
    figure = ShownFigure(figsize=(width, 0.72 * width + legend), layout="constrained")
    axes = figure.add_subplot()
    draw_lines(axes, lines, "round", palette=palette(), shade=0.18 if len(lines) <= MANY else 0.07)
    axes.set(ylabel=title)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=3.0)
    return figure


def intervals_figure(intervals: Sequence[Interval], title: str, width: float) -> ShownFigure:
    """A line for each row with its mean and interval, and zero; a ring where the interval holds zero.

    Args:
        intervals: from top to bottom.
        title: of the axis.
        width: of the figure, inches.
    """
    figure = ShownFigure(figsize=(width, 0.6 + ROW * len(intervals)), layout="constrained")
    axes, places, colour = figure.add_subplot(), range(len(intervals)), palette()[0]
    axes.axvline(0.0, color="0.6", linewidth=0.8)
    for place, interval in enumerate(intervals):
        look: dict[str, Any] = {"color": colour, "markerfacecolor": colour if interval.decided else "white"}
        axes.errorbar(interval.mean, place, xerr=interval.half_width, fmt="o", markersize=4, **look)
    axes.set_yticks(places, [interval.name for interval in intervals])
    axes.set_ylim(len(intervals) - 0.5, -0.5)
    axes.set_xlabel(title)
    return figure
