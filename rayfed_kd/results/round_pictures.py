"""A run's pictures: what its recorder lets another thread draw, round by round."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rayfed_kd.files.whole import write_parquet
from rayfed_kd.results.tables import read_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfed_kd.protocol import Samples, Shown
    from rayfed_kd.setting.setting import Setting

SHOWN_SAMPLES = 64  # of those that a method generated
REAL_PER_CLASS = 200  # images that a real class mean is of

Array = np.ndarray[Any, Any]


class RoundPictures:
    """Draws the pictures of one run, from one thread; trackers get them as they are: each is drawn once.

    Args:
        folder: the run's folder.
        setting: what runs.
    """

    def __init__(self, folder: Path, setting: Setting) -> None:
        self._folder, self._setting = folder, setting

    def draw_partition(self) -> None:
        """Draw what stands before the first round."""
        from rayfed_kd.results.charts.partition import bubble_figure

        labels = np.asarray(self._setting.dataset.train.labels)
        counts = self._setting.partition.counts(labels, self._setting.dataset.classes)
        figure = bubble_figure(counts, self._setting.dataset.class_names, "Samples that clients hold")
        self._save_picture(figure, "partition")

    def draw_shown(self, round_index: int, name: str, content: Shown) -> None:
        """Draw what a method shows after a round under this name."""
        from rayfed_kd.protocol import ClassValues, Samples, to_array

        drawn = [content.images] if isinstance(content, Samples) else content.values.values()
        if not any(map(len, drawn)):
            return  # no picture of nothing
        if isinstance(content, Samples):
            self._draw_samples(round_index, name, content)
            return
        from rayfed_kd.results.charts.bars import class_values_figure, distribution_figure

        values = {series: to_array(value) for series, value in content.values.items()}
        names = self._setting.dataset.class_names
        if isinstance(content, ClassValues):
            figure = class_values_figure(values, names, content.quantity, round_index)
        else:
            figure = distribution_figure(values, content.quantity, round_index)
        file = f"{name}-{round_index:06d}"
        self._save_picture(figure, file)
        rows = [
            (series, place, float(v)) for series, value in values.items() for place, v in enumerate(value)
        ]
        columns = dict(zip(("series", "index", "value"), zip(*rows, strict=True), strict=True))
        write_parquet(self._folder / "figures" / f"{file}.parquet", pa.table(columns))

    def _draw_samples(self, round_index: int, name: str, samples: Samples) -> None:
        from rayfed_kd.protocol import to_array
        from rayfed_kd.results.charts.images import class_means_figure, sample_grid_figure

        names = self._setting.dataset.class_names
        images, labels = map(to_array, (samples.images, samples.labels))
        grid = sample_grid_figure(images[:SHOWN_SAMPLES], labels[:SHOWN_SAMPLES], names)
        means, counts = _class_means(images, labels, len(names))
        classes = class_means_figure(self._real_means, means, names, counts)
        for tag, figure in ((name, grid), ("class_means" if name == "samples" else f"{name}_means", classes)):
            self._save_picture(figure, f"{tag}-{round_index:06d}")

    def _save_picture(self, figure: Figure, name: str) -> None:
        from rayfed_kd.results.charts.figure import save_figure

        save_figure(figure, self._folder / "figures" / f"{name}.png")

    @cached_property
    def _real_means(self) -> Array:
        train = self._setting.dataset.train
        labels = np.asarray(train.labels)
        classes = len(self._setting.dataset.class_names)
        chosen = np.concatenate([np.flatnonzero(labels == c)[:REAL_PER_CLASS] for c in range(classes)])
        images = np.asarray(train.images[np.sort(chosen)], dtype=np.float32) / 255
        return _class_means(images, labels[np.sort(chosen)], classes)[0]

    def draw_last(self) -> None:
        """Draw the pictures of all rounds."""
        from rayfed_kd.results.charts.bars import accuracy_histogram_figure
        from rayfed_kd.results.charts.lines import curves_figure, logged_figure

        rounds = read_table(self._folder / "tables", "rounds").to_pylist()
        logged = {row["round"]: dict(row["logged"]) for row in rounds}
        if any(logged.values()):
            self._save_picture(logged_figure(logged), "logged")
        curves = curves_figure(read_table(self._folder / "tables", "metrics"))
        if curves is not None:
            self._save_picture(curves, "curves")
        clients = read_table(self._folder / "tables", "clients")
        if clients.num_rows:
            self._save_picture(accuracy_histogram_figure(clients), "client-accuracies")


def _class_means(images: Array, labels: Array, classes: int) -> tuple[Array, Array]:
    """Mean image per class, [classes, c, h, w], NaN where a class has none; and how many it has."""
    means = np.full((classes, *images.shape[1:]), np.nan, dtype=np.float32)
    counts = np.bincount(labels, minlength=classes)
    for label in np.flatnonzero(counts):
        means[label] = images[labels == label].mean(axis=0)
    return means, counts
