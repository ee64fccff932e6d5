"""Clients by classes: which client holds how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rayfed_kd.results.charts.figure import COLOURS, ShownFigure

Array = np.ndarray[Any, Any]
MOST_CLIENTS = 100  # more rows would be thinner than a line
MOST_NAMES = 30  # of more classes only every tenth is named
LARGEST_BUBBLE = 400.0  # square points, as matplotlib counts a marker's size
LEGEND_SHARES = (1.0, 0.25)  # the legend's bubbles, as shares of the largest count
FILLED = 0.95  # of a cell's side, by the largest bubble: bubbles of neighbours do not touch


def bubble_figure(counts: Array, class_names: Sequence[str], title: str) -> Figure:
    """Clients by classes; a bubble's area is the number of samples (FedKF's Fig. 4, FedD2S's Fig. 2).

    Args:
        counts: [clients, classes], samples; of more than 100 clients the first 100 are drawn.
        class_names: [classes].
        title: the heading.
    """
    shown = counts[:MOST_CLIENTS]
    if len(shown) < len(counts):
        title = f"{title}: first {MOST_CLIENTS} of {len(counts)} clients"
    clients, classes = shown.shape
    figure = ShownFigure(figsize=(_side(clients), _side(classes)), layout="constrained")
    axes = figure.add_subplot()
    axes.set(
        xlabel="client", ylabel="class", title=title, xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3)
    )
    axes.set_xticks(_tick_places(clients))
    named = _tick_places(classes)
    axes.set_yticks(named, [class_names[place] for place in named], fontsize=7)
    look: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.8, "linewidths": 0}
    most = max(int(shown.max()), 1)
    client, label = np.nonzero(shown)
    bubbles = axes.scatter(client, label, **look)
    for share in LEGEND_SHARES:
        axes.scatter([], [], s=LARGEST_BUBBLE, label=f"{max(1, round(share * most))}", **look)
    legend = figure.legend(loc="outside right upper", title="samples", frameon=False, labelspacing=1.2)
    # Cells are known only after a first layout: labels and legend take their room from the axes.
    figure.draw_without_rendering()
    lower, upper = axes.transData.transform([(0, 0), (1, 1)])
    points = float(min(upper - lower)) / figure.dpi * 72  # of a cell's shorter side
    largest = min(LARGEST_BUBBLE, (FILLED * points) ** 2)
    bubbles.set_sizes(shown[client, label] / most * largest)
    keys: list[Any] = legend.legend_handles
    for key, share in zip(keys, LEGEND_SHARES, strict=True):
        key.set_sizes([share * largest])
    return figure


def _side(cells: int) -> float:
    return float(np.clip(0.32 * cells + 1.6, 4.0, 16.0))


def _tick_places(cells: int) -> range:
    return range(0, cells, 1 if cells <= MOST_NAMES else 10)
