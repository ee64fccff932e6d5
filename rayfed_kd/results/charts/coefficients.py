"""A search's chart: the metric against each coefficient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_kd.results.charts.figure import COLOURS
from rayfed_kd.results.charts.lines import make_logarithmic

PER_ROW = 4  # panels side by side
# A trial's status, or `best` for a ring around the best one -> colour, whether it is filled, and size.
LOOKS = {
    "finished": (COLOURS[0], True, 26),
    "stopped": (COLOURS[0], False, 26),
    "failed": (COLOURS[1], False, 26),
    "best": (COLOURS[2], False, 110),
}


class CoefficientPanel(NamedTuple):
    """A coefficient's axis, and the trials' points.

    Attributes:
        key: the recipe key.
        kind: uniform, loguniform, randint, or choice, whose values lie at 0, 1, ...
        values: of a choice all of them, else both ends.
        names: of the values.
        points: of the trials that have a value: a key of `LOOKS` -> (place on the axis, value).
    """

    key: str
    kind: str
    values: Sequence[Any]
    names: Sequence[str]
    points: Mapping[str, Sequence[tuple[float, float]]]


def coefficients_figure(panels: Sequence[CoefficientPanel], metric: str) -> Figure:
    """Every trial's best value against each coefficient: finished trials filled, others hollow.

    Args:
        panels: one for each coefficient, in order; there is at least one point.
        metric: what was searched for, with its unit.
    """
    columns = min(PER_ROW, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns + 0.6, 3.2 * lines), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, number)
        _draw_scatter(axes, panel)
        axes.set_xlabel(panel.key)
        axes.grid(alpha=0.3)
        if number % columns == 1 or columns == 1:
            axes.set_ylabel(f"best {metric}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_scatter(axes: Axes, panel: CoefficientPanel) -> None:
    """Draw best values against one coefficient: stopped and failed trials hollow, the best ringed.

    Args:
        axes: where to draw.
        panel: the coefficient.
    """
    for name, (colour, filled, size) in LOOKS.items():
        if points := panel.points.get(name):
            places, values = zip(*points, strict=True)
            face = colour if filled else "none"
            axes.scatter(places, values, s=size, facecolors=face, edgecolors=colour, label=name)
    low, high = (-0.3, len(panel.names) - 0.7) if panel.kind == "choice" else panel.values
    if panel.kind == "choice":
        axes.set_xticks(range(len(panel.names)), panel.names)
    if panel.kind == "randint":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    # Four percent of the axis, so that no point lies on its edge.
    if panel.kind == "loguniform":
        make_logarithmic(axes, panel.values)
        axes.set_xlim(low * (low / high) ** 0.04, high * (high / low) ** 0.04)
    else:
        axes.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
