"""Images in rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
PER_ROW = 13  # classes side by side in the picture of class means
SMALLEST = 28  # pixels; smaller images are enlarged


PREDICTED = "generated samples, with the class that the model predicts"


def sample_grid_figure(
    images: Array, labels: Array, class_names: Sequence[str], heading: str = PREDICTED
) -> Figure:
    """Samples with their classes, as generated ones with those that the teacher predicts.

    Args:
        images: [n, c, h, w] in [0, 1].
        labels: [n], their classes.
        class_names: [classes].
    """
    columns = min(16, len(images))
    rows = -(-len(images) // columns)
    titles = [class_names[int(label)] for label in labels]
    return _mosaic(images, titles, (rows, columns), heading)


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
    pixels = canvas[..., 0] if channels == 1 else np.where(np.isnan(canvas), 1.0, canvas)
    axes.imshow(np.ma.masked_invalid(pixels), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return figure
