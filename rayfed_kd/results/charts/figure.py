"""What all charts share: colours, figures that a notebook shows, panels that are drawn once, and saving."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from rayfed_kd.files.whole import make_folder, written_aside

# Okabe and Ito's palette: told apart by the colour-blind, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# With the colours 28 looks; after these lines have marks as well, so that no two of 140 look the same.
DASHES = ("", "5 2", "1.5 1.5", "6 2 1.5 2")
MARKS = ("", "s", "^", "D", "v")
FEW = 30  # points; a curve of fewer has a dot at each

# Inches around a panel, for a title, an axis' label and numbers of up to seven digits.
LEFT, RIGHT, TOP, BOTTOM = 0.65, 0.15, 0.35, 0.5
LETTER = 0.1  # inches of a legend's average letter, and of its mark and margins
MARK = 0.6


LARGEST = 1e100  # a difference of two numbers that are not much larger overflows


def drawable(values: ArrayLike) -> NDArray[np.float64]:
    """Numbers of which matplotlib can make an axis: a gap, NaN, in the place of infinite and huge ones."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)


class ShownFigure(Figure):
    """A figure that a notebook shows. matplotlib's own formatter is there only after pyplot was imported."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=100)
        return stream.getvalue()


class Panels:
    """Panels in rows and columns, with margins in inches.

    matplotlib's own layouts draw every text twice, once to measure it: half of a picture's time, and a run
    waits for its last pictures.

    Args:
        count: number of panels.
        columns: most panels side by side.
        size: a panel's width and height with its margins, inches.
        legend: the names in a legend right of the panels; none: no room for one.

    Attributes:
        figure: the figure.
        axes: [count], row by row.
    """

    def __init__(
        self, count: int, columns: int, size: tuple[float, float], legend: tuple[str, ...] = ()
    ) -> None:
        columns, rows = min(columns, count), -(-count // columns)
        (width, height), beside = size, MARK + LETTER * max(map(len, legend)) if legend else 0.0
        inches = columns * width + beside, rows * height
        self.figure = ShownFigure(figsize=inches)
        self.axes: list[Axes] = []
        for place in range(count):
            row, column = divmod(place, columns)
            left, below = column * width + LEFT, (rows - row - 1) * height + BOTTOM
            wide, high = width - LEFT - RIGHT, height - TOP - BOTTOM
            box = left / inches[0], below / inches[1], wide / inches[0], high / inches[1]
            self.axes.append(self.figure.add_axes(box))


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG, whole or not at all.

    Args:
        figure: any figure.
        path: the file; its folder is made if it is not there.
    """
    make_folder(path.parent)
    with written_aside(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
