"""Histograms and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_kd.results.charts.figure import COLOURS, Panels, drawable

Array = np.ndarray[Any, Any]
BINS = 30  # of a histogram
MOST_LETTERS = 50  # of a bar's name; longer ones are cut
PERCENTS = tuple(float(edge) for edge in range(0, 101, 5))  # edges of a histogram of accuracies


def draw_accuracies(axes: Axes, percents: Sequence[float], colour: str, highest: int | None = None) -> None:
    """How many clients have which accuracy, in steps of five points.

    Args:
        axes: where to draw.
        percents: accuracies in [0, 100].
        colour: the bars'.
        highest: the axis' end, for panels side by side; None: it follows from the bars.
    """
    axes.hist(percents, bins=list(PERCENTS), color=colour)
    axes.set(xlabel="accuracy of a client (%)", ylabel="clients", ylim=(0, highest))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def draw_phases(
    axes: Axes, rounds: Sequence[int], phases: Sequence[Sequence[float]], palette: Sequence[str]
) -> None:
    """Seconds of each round, phases stacked.

    Args:
        axes: where to draw.
        rounds: at least one, ascending.
        phases: each [rounds], seconds.
        palette: a colour for each phase.
    """
    edges = [index - 0.5 for index in rounds] + [rounds[-1] + 0.5]
    below: Array = np.zeros(len(rounds))
    for colour, seconds in zip(palette, phases, strict=False):
        above = below + np.asarray(seconds)
        axes.stairs(above, edges, baseline=below, fill=True, color=colour, linewidth=0)
        below = above
    axes.set(xlabel="round", ylabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def draw_bars(axes: Axes, bars: Mapping[str, Mapping[int, float]], unit: str, palette: Sequence[str]) -> None:
    """Horizontal bars, one below the other, each of stacked parts.

    Args:
        axes: where to draw.
        bars: name -> look -> value.
        unit: the axis' label.
        palette: colours by look.
    """
    for place, (name, parts) in enumerate(bars.items()):
        left = 0.0
        for look, value in parts.items():
            colour = palette[look % len(palette)]
            axes.barh(place, value, left=left, height=0.4, color=colour, linewidth=0)
            left += value
        label = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        axes.annotate(label, (0, place), (1, 9), textcoords="offset points", fontsize=8.5)
    axes.set(xlabel=unit, ylim=(len(bars) - 0.5, -0.9), yticks=[])


def accuracy_histogram_figure(clients: pa.Table) -> Figure:
    """Client accuracies of the last evaluated round, a histogram per model.

    Args:
        clients: the table `clients`, with at least one row.
    """
    last = pc.max(clients["round"]).as_py()
    rows = clients.filter(pc.equal(clients["round"], last)).to_pylist()
    models = sorted({row["model"] for row in rows})
    panels = Panels(len(models), len(models), (4.2, 3.2))
    for place, (axes, model) in enumerate(zip(panels.axes, models, strict=True)):
        values = [100 * row["accuracy"] for row in rows if row["model"] == model]
        draw_accuracies(axes, values, COLOURS[place % len(COLOURS)])
        axes.set_title(f"{model}, round {last}")
    return panels.figure


def distribution_figure(values: Mapping[str, Array], quantity: str, round_index: int) -> Figure:
    """A histogram per series, over the same bins.

    Args:
        values: series -> [n]; what is not finite lies in no bin.
        quantity: what the values are; the axis' label.
        round_index: the round that they are of.
    """
    finite = {series: numbers[np.isfinite(drawable(numbers))] for series, numbers in values.items()}
    every = np.concatenate([*finite.values(), [] if any(map(len, finite.values())) else [0.0]])
    low, high = float(every.min()), float(every.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):  # too near to each other for edges between them
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    figure = Figure(figsize=(4.2 * len(values), 3.2), layout="constrained")
    for place, (series, numbers) in enumerate(finite.items()):
        axes = figure.add_subplot(1, len(values), place + 1)
        axes.hist(numbers, bins=[float(edge) for edge in edges], color=COLOURS[place % len(COLOURS)])
        axes.set(xlabel=quantity, ylabel="how many", title=f"{series}, round {round_index}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def class_values_figure(
    values: Mapping[str, Array], class_names: Sequence[str], quantity: str, round_index: int
) -> Figure:
    """Bars by class, side by side for each series (KDIA's Fig. 7).

    Args:
        values: series -> [classes]; NaN leaves a gap.
        class_names: [classes].
        quantity: what the values are; stands in the title.
        round_index: the round that they are of.
    """
    classes = len(class_names)
    figure = Figure(figsize=(float(np.clip(0.5 * classes + 1.5, 4.5, 16)), 3.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(values)
    for place, (series, heights) in enumerate(values.items()):
        places = np.arange(classes) + (place - (len(values) - 1) / 2) * width
        axes.bar(places, drawable(heights), width, color=COLOURS[place % len(COLOURS)], label=series)
    step = 1 if classes <= 30 else 10
    axes.set_xticks(
        range(0, classes, step), class_names[::step], fontsize=7, rotation=90 if classes > 10 else 0
    )
    axes.set(xlabel="class", title=f"{quantity}, round {round_index}")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
