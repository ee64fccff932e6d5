"""A search's chart: the metric against each coefficient."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.axes import Axes
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
    """A coefficient's axis, and where a value lies on it.

    Attributes:
        key: the recipe key.
        low, high: the axis' ends, in the coefficient's own units; of a choice a bit beyond its numbers.
        choice: the values of a choice, which lie at 0, 1, ...; None for numbers.
        names: of a choice's values.
        logarithmic: whether the axis is.
        whole: whether all values are whole numbers.
    """

    key: str
    low: float
    high: float
    choice: Sequence[Any] | None = None
    names: Sequence[str] = ()
    logarithmic: bool = False
    whole: bool = False

    def place(self, value: Any) -> float:
        """Where a value lies, in the coefficient's own units; of a choice the value's number."""
        if self.choice is None:
            return float(value)
        return float([_json_text(one) for one in self.choice].index(_json_text(value)))


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
        axes.set_xticks(range(len(axis.names)), axis.names)
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
