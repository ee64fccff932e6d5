"""A search's charts: the metric against each coefficient, and all trials on parallel axes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from rayfed_kd.results.charts.figure import COLOURS

PER_ROW = 4  # panels side by side


class Trial(Protocol):
    """What is drawn of a trial."""

    @property
    def coefficients(self) -> Mapping[str, Any]:
        """Recipe key -> value."""
        ...

    @property
    def best(self) -> float | None:
        """Its largest value, in [0, 1]; None without one."""
        ...

    @property
    def status(self) -> str:
        """finished, stopped, failed or running."""
        ...


@dataclass(frozen=True)
class CoefficientAxis:
    """A coefficient's axis: where a value lies on it, and what stands at which places.

    Attributes:
        key: the recipe key.
        ticks: (place, text); the ends, or every value of a choice.
        low, high: the axis' ends, in the coefficient's own units; of a choice a bit beyond its numbers.
        choice: the values of a choice, which lie at 0, 1, ...; None for numbers.
        logarithmic: whether the axis is.
        whole: whether all values are whole numbers.
    """

    key: str
    ticks: Sequence[tuple[float, str]]
    low: float
    high: float
    choice: Sequence[Any] | None
    logarithmic: bool
    whole: bool

    def place(self, value: Any) -> float:
        """Where a value lies, in the coefficient's own units; of a choice the value's number."""
        if self.choice is None:
            return float(value)
        return float([_json_text(one) for one in self.choice].index(_json_text(value)))

    def share(self, value: float) -> float:
        """A place as a share of the axis, 0 at its low end and 1 at its high end."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def coefficients_figure(
    rows: Sequence[Trial], coefficient_axes: Sequence[CoefficientAxis], metric: str, best: Trial | None
) -> Figure:
    """Every trial's best value against each coefficient: finished trials filled, others hollow.

    Args:
        rows: trials that have a value, at least one.
        coefficient_axes: the coefficients, in order.
        metric: what was searched for.
        best: the trial that is ringed.
    """
    columns = min(PER_ROW, len(coefficient_axes))
    lines = -(-len(coefficient_axes) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, 3.2 * lines), layout="constrained")
    for number, axis in enumerate(coefficient_axes, start=1):
        axes = figure.add_subplot(lines, columns, number)
        draw_scatter(axes, axis, rows, best)
        axes.set_xlabel(axis.key)
        axes.grid(alpha=0.3)
        if number % columns == 1 or columns == 1:
            axes.set_ylabel(f"best {metric} (%)")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    return figure


def draw_scatter(axes: Axes, axis: CoefficientAxis, rows: Sequence[Trial], best: Trial | None) -> None:
    """Draw best values (%) against one coefficient: stopped and failed trials hollow, the best ringed.

    Args:
        axes: where to draw.
        axis: the coefficient.
        rows: trials; those without a value are left out.
        best: the trial that is ringed.
    """
    for status, colour, filled in (("finished", 0, True), ("stopped", 0, False), ("failed", 1, False)):
        points = [
            (axis.place(row.coefficients[axis.key]), 100 * row.best)
            for row in rows
            if row.status == status and row.best is not None
        ]
        if points:
            face = COLOURS[colour] if filled else "none"
            across, up = zip(*points, strict=True)
            axes.scatter(across, up, s=26, facecolors=face, edgecolors=COLOURS[colour], label=status)
    if best is not None and best.best is not None:
        place = axis.place(best.coefficients[axis.key])
        axes.scatter(
            [place], [100 * best.best], s=110, facecolors="none", edgecolors=COLOURS[2], label="best"
        )
    if axis.choice is not None:
        axes.set_xticks([place for place, _ in axis.ticks], [text for _, text in axis.ticks])
    if axis.logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        margin = (axis.high / axis.low) ** 0.04  # four percent of the axis, so that no point lies on its edge
        axes.set_xlim(axis.low / margin, axis.high * margin)
    else:
        if axis.whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        margin = 0.04 * (axis.high - axis.low)
        axes.set_xlim(axis.low - margin, axis.high + margin)


def parallel_figure(
    rows: Sequence[Trial], coefficient_axes: Sequence[CoefficientAxis], metric: str, best: Trial | None
) -> Figure:
    """A line per trial across an axis per coefficient and the metric's axis, which gives the line's colour.

    Args:
        rows: trials that have a value, at least one.
        coefficient_axes: the coefficients, in order.
        metric: what was searched for.
        best: the trial whose line is thick.
    """
    low, high = _metric_ends(rows)
    figure = Figure(figsize=(2.0 * len(coefficient_axes) + 3.0, 4.0), layout="constrained")
    colour = Normalize(low, high)
    axes = figure.add_subplot()
    draw_parallel(
        axes, coefficient_axes, rows, best, lambda row: colormaps["viridis"](colour(100 * (row.best or 0)))
    )
    figure.colorbar(ScalarMappable(colour, "viridis"), ax=axes, label=f"best {metric} (%)")
    return figure


def draw_parallel(
    axes: Axes,
    coefficient_axes: Sequence[CoefficientAxis],
    rows: Sequence[Trial],
    best: Trial | None,
    colour: Callable[[Trial], Any],
) -> None:
    """Draw a line per trial: the best thick, those that did not finish dashed. The last axis is the metric's.

    Args:
        axes: where to draw.
        coefficient_axes: the coefficients, from left to right.
        rows: trials, at least one with a value.
        best: the trial whose line is thick.
        colour: a trial's colour.
    """
    (low, high), last = _metric_ends(rows), len(coefficient_axes)
    for row in sorted(rows, key=lambda row: row.best or 0.0):
        if row.best is None:
            continue
        heights = [axis.share(axis.place(row.coefficients[axis.key])) for axis in coefficient_axes]
        heights.append((100 * row.best - low) / (high - low))
        axes.plot(
            range(last + 1),
            heights,
            color=colour(row),
            linewidth=3.0 if row is best else 1.2,
            linestyle="-" if row.status == "finished" else "--",
        )
    for place, axis in enumerate(coefficient_axes):
        _draw_axis(axes, place, [(axis.share(value), text) for value, text in axis.ticks])
    _draw_axis(axes, last, [(0.0, f"{low:.1f}"), (1.0, f"{high:.1f}")])
    axes.set_xticks(range(last + 1), [*(axis.key for axis in coefficient_axes), "best (%)"], fontsize=8)
    axes.set_yticks([])
    axes.set(xlim=(-0.3, last + 0.4), ylim=(-0.06, 1.06))
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)


def _metric_ends(rows: Sequence[Trial]) -> tuple[float, float]:
    """The ends of the metric's axis, in percent; one point beyond a single value, so that they differ."""
    values = [100 * row.best for row in rows if row.best is not None]
    low, high = min(values), max(values)
    return (low - 1, high + 1) if low == high else (low, high)


def _draw_axis(axes: Axes, place: int, ticks: Sequence[tuple[float, str]]) -> None:
    """A vertical axis with the texts of its ends or choices."""
    axes.axvline(place, color="0.6", linewidth=0.8, zorder=0)
    for height, text in ticks:
        axes.annotate(
            text, (place, height), xytext=(4, 0), textcoords="offset points", fontsize=7, va="center"
        )
