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
MOST_NUMBERS = 240  # of more cells the numbers would run into each other
HEAT_MAP_CELL, HEAT_MAP_SIDE = 0.32, 9.0  # inches


def bubble_figure(counts: Array, class_names: Sequence[str], title: str) -> Figure:
    """Clients by classes; a bubble's area is the number of samples (FedKF's Fig. 4, FedD2S's Fig. 2).

    Args:
        counts: [clients, classes], samples; of more than 100 clients the first 100 are drawn.
        class_names: [classes].
        title: the heading.
    """
    shown, title = _first_clients(counts, title)
    clients, classes = shown.shape
    figure = ShownFigure(figsize=(_side(clients), _side(classes)), layout="constrained")
    axes = figure.add_subplot()
    axes.set(
        xlabel="client", ylabel="class", title=title, xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3)
    )
    axes.set_xticks(_tick_places(clients))
    _name_classes(axes.yaxis, class_names)
    look: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.8, "linewidths": 0}
    most = max(int(shown.max()), 1)
    client, label = np.nonzero(shown)
    bubbles = axes.scatter(client, label, **look)
    for share in LEGEND_SHARES:
        axes.scatter([], [], s=LARGEST_BUBBLE, label=f"{max(1, round(share * most))}", **look)
    legend = figure.legend(loc="outside right upper", title="samples", frameon=False, labelspacing=1.2)
    largest = min(LARGEST_BUBBLE, (FILLED * _cell_points(figure)) ** 2)
    bubbles.set_sizes(shown[client, label] / most * largest)
    keys: list[Any] = legend.legend_handles
    for key, share in zip(keys, LEGEND_SHARES, strict=True):
        key.set_sizes([share * largest])
    return figure


def heat_map_figure(counts: Array, class_names: Sequence[str], title: str) -> Figure:
    """Classes by clients; the colour is the number of samples (KDIA's Fig. 4: x the class, y the client).

    Args:
        counts: [clients, classes], samples; of more than 100 clients the first 100 are drawn.
        class_names: [classes].
        title: the heading.
    """
    shown, title = _first_clients(counts, title)
    clients, classes = shown.shape
    sides = [float(np.clip(HEAT_MAP_CELL * cells + 1.8, 4.5, HEAT_MAP_SIDE)) for cells in (classes, clients)]
    figure = Figure(figsize=(sides[0] + 0.6, sides[1]), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(shown, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
    figure.colorbar(drawn, ax=axes, label="samples")
    if shown.size <= MOST_NUMBERS:
        _write_numbers(axes, shown)
    axes.set(xlabel="class", ylabel="client", title=title)
    _name_classes(axes.xaxis, class_names, rotation=90 if max(map(len, class_names)) > 2 else 0)
    axes.set_yticks(_tick_places(clients))
    return figure


def _first_clients(counts: Array, title: str) -> tuple[Array, str]:
    if len(counts) <= MOST_CLIENTS:
        return counts, title
    return counts[:MOST_CLIENTS], f"{title}: first {MOST_CLIENTS} of {len(counts)} clients"


def _side(cells: int) -> float:
    return float(np.clip(0.32 * cells + 1.6, 4.0, 16.0))


def _cell_points(figure: Figure) -> float:
    """The shorter side of a cell, in points."""
    # Known only after a first layout: labels and legend take their room from the axes.
    figure.draw_without_rendering()
    lower, upper = figure.axes[0].transData.transform([(0, 0), (1, 1)])
    return float(min(upper - lower) / figure.dpi * 72)


def _write_numbers(axes: Any, shown: Array) -> None:
    for client, label in np.argwhere(shown):
        value = int(shown[client, label])
        colour = "white" if value > 0.6 * shown.max() else "black"
        axes.text(label, client, str(value), ha="center", va="center", fontsize=6, color=colour)


def _tick_places(cells: int) -> range:
    return range(0, cells, 1 if cells <= MOST_NAMES else 10)


def _name_classes(axis: Any, class_names: Sequence[str], rotation: int = 0) -> None:
    places = _tick_places(len(class_names))
    axis.set_ticks(places, [class_names[place] for place in places], fontsize=7, rotation=rotation)
