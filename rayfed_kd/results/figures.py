"""Pictures of a run, a comparison or a search.

They use matplotlib's objects, and never pyplot: no global state, no display, safe in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_kd.files import written_aside
from rayfed_kd.results.panels import Panels, ShownFigure

Array = np.ndarray[Any, Any]

# Okabe and Ito's palette: told apart by the colour-blind, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LOGGED_PER_ROW = 4  # panels side by side in the picture of what a method logged
PER_ROW = 13  # classes side by side in the picture of class means
MIB_SENT = "MiB sent"  # an axis on which methods differ by powers of ten
SMALLEST = 28  # pixels; smaller images are enlarged


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG, whole or not at all.

    Args:
        figure: any figure.
        path: the file; its folder is made if it is not there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(path) as aside:
        figure.savefig(aside, format="png", dpi=120)


def curves_figure(metrics: pa.Table) -> Figure:
    """AMP, FM, WLP and the official test by round, a line per model (FedKF's Fig. 5).

    Args:
        metrics: the table `metrics`, with at least one row. A metric without values has no panel.
    """
    rows = metrics.to_pylist()
    titles = {
        "amp": "AMP (%)",
        "fm": "FM (variance)",
        "wlp": "WLP (%)",
        "server_accuracy": "official test (%)",
    }
    shown = [m for m in titles if any(row[m] is not None for row in rows)]
    models = sorted({row["model"] for row in rows})
    panels = Panels(len(shown), len(shown), (4.2, 3.4), legend=tuple(models))
    for axes, metric in zip(panels.axes, shown, strict=True):
        scale = 1 if metric == "fm" else 100
        for colour, model in zip(_distinct_colours(len(models)), models, strict=True):
            points = [
                (r["round"], scale * r[metric]) for r in rows if r["model"] == model and r[metric] is not None
            ]
            axes.plot(
                *zip(*points, strict=True), color=colour, label=model, marker="." if len(points) < 30 else ""
            )
        axes.set(xlabel="round", title=titles[metric])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
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
        points = [(index, values[name]) for index, values in logged.items() if name in values]
        axes.plot(*zip(*points, strict=True), color=COLOURS[0], marker="." if len(points) < 30 else "")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
    for axes in panels.axes[-LOGGED_PER_ROW:]:
        axes.set_xlabel("round", fontsize=8)
    return panels.figure


def distribution_figure(values: Mapping[str, Array], quantity: str, round_index: int) -> Figure:
    """A histogram per series, over the same bins.

    Args:
        values: series -> [n]; what is not finite lies in no bin.
        quantity: what the values are; the axis' label.
        round_index: the round that they are of.
    """
    all_values = np.concatenate(list(values.values()))
    edges = np.histogram_bin_edges(all_values[np.isfinite(all_values)], bins=30)
    figure = Figure(figsize=(4.2 * len(values), 3.2), layout="constrained")
    for place, (colour, (series, numbers)) in enumerate(
        zip(_distinct_colours(len(values)), values.items(), strict=True), start=1
    ):
        axes = figure.add_subplot(1, len(values), place)
        axes.hist(numbers, bins=[float(edge) for edge in edges], color=colour)
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
        axes.bar(places, heights, width, color=COLOURS[place % len(COLOURS)], label=series)
    step = 1 if classes <= 30 else 10
    axes.set_xticks(
        range(0, classes, step), class_names[::step], fontsize=7, rotation=90 if classes > 10 else 0
    )
    axes.set(xlabel="class", title=f"{quantity}, round {round_index}")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def band_figure(bands: Mapping[str, tuple[Array, Array, Array]], title: str, seeds: int) -> Figure:
    """Mean curves with a band of one sample deviation over seeds.

    Args:
        bands: name -> rounds, mean, deviation; values as in the tables.
        title: of the metric; a "%" in it scales values by 100.
        seeds: the number of seeds, for the heading.
    """
    scale = 100 if "%" in title else 1
    figure = ShownFigure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for colour, (name, (rounds, mean, deviation)) in zip(
        _distinct_colours(len(bands)), bands.items(), strict=True
    ):
        axes.plot(rounds, scale * mean, color=colour, label=name, marker="." if len(rounds) < 30 else "")
        axes.fill_between(
            rounds,
            scale * (mean - deviation),
            scale * (mean + deviation),
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    axes.set(
        xlabel="round", ylabel=title, title=f"mean and deviation over {seeds} seeds" if seeds > 1 else ""
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def times_figure(curves: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], title: str) -> Figure:
    """One metric by round, by seconds and by bytes; a line per seed.

    Args:
        curves: name -> per seed: "value", and what it is drawn over by axis label.
        title: of the metric; "%" in it scales by 100.
    """
    scale = 100 if "%" in title else 1
    labels = [label for label in next(iter(curves.values()))[0] if label != "value"]
    figure = Figure(figsize=(4.0 * len(labels), 4.0), layout="constrained")
    panels = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    for axes, label in zip(panels, labels, strict=True):
        for colour, (name, seeds) in zip(_distinct_colours(len(curves)), curves.items(), strict=True):
            for place, one in enumerate(seeds):
                values = [scale * value for value in one["value"]]
                named = name if place == 0 and label == labels[0] else None
                axes.plot(one[label], values, color=colour, label=named, linewidth=1.2)
        axes.set(xlabel=label, xscale="log" if label == MIB_SENT else "linear")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(title)
    figure.legend(loc="outside upper center", ncols=min(4, len(curves)), frameon=False, fontsize=8)
    return figure


def sample_grid_figure(images: Array, labels: Array, class_names: Sequence[str]) -> Figure:
    """Generated samples with the class that the teacher predicts.

    Args:
        images: [n, c, h, w] in [0, 1].
        labels: [n], the predicted classes.
        class_names: [classes].
    """
    columns = min(16, len(images))
    rows = -(-len(images) // columns)
    titles = [class_names[int(label)] for label in labels]
    return _mosaic(
        images, titles, (rows, columns), "generated samples, with the class that the model predicts"
    )


def class_means_figure(
    real: Array, generated: Array, class_names: Sequence[str], counts: Sequence[int] | Array
) -> Figure:
    """Mean real image per class above the mean generated image per predicted class (FedKF's Fig. 2 and 3).

    Args:
        real, generated: [classes, c, h, w] in [0, 1]; NaN where a class was never predicted.
        class_names: [classes].
        counts: [classes], how many generated images each mean is of.
    """
    classes = len(class_names)
    columns = min(PER_ROW, classes)
    bands = -(-classes // columns)
    images = np.full((2 * bands * columns, *real.shape[1:]), np.nan, dtype=np.float32)
    titles = [""] * len(images)
    for label in range(classes):
        band, column = divmod(label, columns)
        above = 2 * band * columns + column
        images[above], titles[above] = real[label], class_names[label]
        images[above + columns], titles[above + columns] = generated[label], f"n={int(counts[label])}"
    heading = "above: real mean; below: generated mean by predicted class"
    return _mosaic(images, titles, (2 * bands, columns), heading)


def accuracy_histogram_figure(clients: pa.Table) -> Figure:
    """Client accuracies of the last evaluated round, a histogram per model.

    Args:
        clients: the table `clients`, with at least one row.
    """
    rows = clients.to_pylist()
    last = max(row["round"] for row in rows)
    models = sorted({row["model"] for row in rows})
    panels = Panels(len(models), len(models), (4.2, 3.2))
    for axes, colour, model in zip(panels.axes, _distinct_colours(len(models)), models, strict=True):
        values = [100 * r["accuracy"] for r in rows if r["round"] == last and r["model"] == model]
        axes.hist(values, bins=[float(edge) for edge in range(0, 101, 5)], color=colour)
        axes.set(
            xlabel="accuracy on the client's own test part (%)",
            ylabel="clients",
            title=f"{model}, round {last}",
        )
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return panels.figure


def _mosaic(images: Array, titles: Sequence[str], grid: tuple[int, int], heading: str) -> Figure:
    """Images in rows and columns on one pair of axes, which is twenty times as fast as a pair per image."""
    rows, columns = grid
    # Small images are enlarged, so that a label has the same room above any of them.
    factor = -(-SMALLEST // max(images.shape[2:]))
    images = images.repeat(factor, axis=2).repeat(factor, axis=3)
    channels, height, width = images.shape[1:]
    gap_y, gap_x = max(2, round(0.4 * height)), max(1, round(0.1 * width))
    canvas = np.full((rows * (height + gap_y), columns * (width + gap_x), channels), np.nan, dtype=np.float32)
    sides = max(0.72 * columns + 0.2, 4.5), 0.72 * rows * (1 + gap_y / height) + 0.4
    figure = Figure(figsize=sides)
    # The heading has the upper 0.3 inches.
    axes = figure.add_axes((0.1 / sides[0], 0.1 / sides[1], 1 - 0.2 / sides[0], 1 - 0.4 / sides[1]))
    axes.set_axis_off()
    axes.set_title(heading, fontsize=8)
    for index, (image, title) in enumerate(zip(images, titles, strict=True)):
        row, column = divmod(index, columns)
        top, left = row * (height + gap_y) + gap_y, column * (width + gap_x)
        canvas[top : top + height, left : left + width] = np.clip(np.moveaxis(image, 0, 2), 0, 1)
        axes.text(left + width / 2, top - 0.15 * gap_y, title, ha="center", va="bottom", fontsize=6)
        if title and np.isnan(image).all():
            axes.text(left + width / 2, top + height / 2, "none", ha="center", va="center", fontsize=6)
    shown = canvas[..., 0] if channels == 1 else np.where(np.isnan(canvas), 1.0, canvas)
    axes.imshow(np.ma.masked_invalid(shown), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return figure


def _distinct_colours(count: int) -> list[str]:
    """Colours that can be told apart: the palette; for more of them even steps through a colour map."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [to_hex(colormaps["turbo"](index / (count - 1))) for index in range(count)]
