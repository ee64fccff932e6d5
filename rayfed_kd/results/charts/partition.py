"""Clients by classes: which client holds how many samples of which class, as pictures and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import RecipeError, shortened
from rayfed_kd.files.folders import writing
from rayfed_kd.files.whole import make_folder, remove_unfinished
from rayfed_kd.results.charts.figure import COLOURS, ShownFigure, save_figure
from rayfed_kd.results.schemas import CONFIG
from rayfed_kd.results.screen_table import preformatted, screen_table, table_text

Array = np.ndarray[Any, Any]
MOST_CLIENTS = 100  # more rows would be thinner than a line
MOST_NAMES = 30  # of more classes only every tenth is named
LARGEST_BUBBLE = 400.0  # square points, as matplotlib counts a marker's size
LEGEND_SHARES = (1.0, 0.25)  # the legend's bubbles, as shares of the largest count
LONGEST_NAME = 30  # of a class in the console's table
FILLED = 0.95  # of a cell's side, by the largest bubble: bubbles of neighbours do not touch


def bubble_figure(counts: Array, class_names: Sequence[str], title: str) -> Figure:
    """Clients by classes; a bubble's area is the number of samples (FedKF's Fig. 4, FedD2S's Fig. 2).

    Args:
        counts: [clients, classes], samples; of more than 100 clients the first 100 are drawn.
        class_names: [classes].
        title: the heading.
    """
    drawn = counts[:MOST_CLIENTS]
    if len(drawn) < len(counts):
        title = f"{title}: first {MOST_CLIENTS} of {len(counts)} clients"
    clients, classes = drawn.shape
    figure = ShownFigure(figsize=(_side(clients), _side(classes)), layout="constrained")
    axes = figure.add_subplot()
    axes.set(
        xlabel="client", ylabel="class", title=title, xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3)
    )
    axes.set_xticks(_tick_places(clients))
    named = _tick_places(classes)
    axes.set_yticks(named, [class_names[place] for place in named], fontsize=7)
    look: dict[str, Any] = {"color": COLOURS[0], "alpha": 0.8, "linewidths": 0}
    most = max(int(drawn.max()), 1)
    client, label = np.nonzero(drawn)
    bubbles = axes.scatter(client, label, **look)
    for share in LEGEND_SHARES:
        axes.scatter([], [], s=LARGEST_BUBBLE, label=f"{max(1, round(share * most))}", **look)
    legend = figure.legend(loc="outside right upper", title="samples", frameon=False, labelspacing=1.2)
    # Cells are known only after a first layout: labels and legend take their room from the axes.
    figure.draw_without_rendering()
    lower, upper = axes.transData.transform([(0, 0), (1, 1)])
    points = float(min(upper - lower)) / figure.dpi * 72  # of a cell's shorter side
    largest = min(LARGEST_BUBBLE, (FILLED * points) ** 2)
    bubbles.set_sizes(drawn[client, label] / most * largest)
    keys: list[Any] = legend.legend_handles
    for key, share in zip(keys, LEGEND_SHARES, strict=True):
        key.set_sizes([share * largest])
    return figure


def _side(cells: int) -> float:
    return float(np.clip(0.32 * cells + 1.6, 4.0, 16.0))


def _tick_places(cells: int) -> range:
    return range(0, cells, 1 if cells <= MOST_NAMES else 10)


@dataclass(frozen=True)
class DrawnPartition:
    """Who holds what. Printed, and in a notebook, it shows a table of the clients.

    Attributes:
        partition: each client's samples: `train` and `test`, a list of indices for each client.
        labels: [samples] int64, the training data's.
        class_names: [classes].
    """

    partition: Partition = field(repr=False)
    labels: Array = field(repr=False)
    class_names: tuple[str, ...]

    @property
    def counts(self) -> Array:
        """[clients, classes] int64, how many samples of each class a client holds, its test part's too."""
        return self.partition.counts(self.labels, len(self.class_names))

    def plot(self) -> Figure:
        """Clients by classes; a bubble's area is the number of samples."""
        return bubble_figure(self.counts, self.class_names, self._title())

    def _title(self) -> str:
        """The scheme and its options, as `dirichlet (alpha 0.1)`."""
        origin = self.partition.origin
        options = ", ".join(f"{key} {value}" for key, value in origin.get("options", {}).items())
        return f"{origin.get('scheme', 'partition')}{' (' + options + ')' if options else ''}"

    def save(self, folder: str | Path) -> list[Path]:
        """Write the picture and partition.parquet, which `partition.file` of a recipe reads.

        Args:
            folder: made if it is not there.

        Returns: the files' paths.

        Raises:
            RecipeError: the folder cannot be written, or is a run's, which has a partition of its own.
        """
        folder = Path(folder)
        if (folder / CONFIG).is_file():
            raise RecipeError(f"--out {folder}: a run's folder; its partition.parquet would be lost")
        paths = [folder / f"partition{end}" for end in ("-bubbles.png", ".parquet")]
        with writing(folder, "--out"):
            make_folder(folder)
            # What a recipe reads comes first: where the disk is full nothing else is there.
            self.partition.save(paths[1])
            save_figure(self.plot(), paths[0])
            for path in paths:
                remove_unfinished(path.parent, path.name)
        return paths

    def screen_table(self) -> Table:
        """A row for each of the first hundred clients, for a terminal; the title says if there are more.

        It has training and test samples, how many classes are present, and the largest with its share.
        """
        rows = []
        for client, counts in enumerate(self.counts[:MOST_CLIENTS]):
            largest = shortened(self.class_names[counts.argmax()], LONGEST_NAME)
            train, test = len(self.partition.train[client]), len(self.partition.test[client])
            share = f"{largest}: {100 * counts.max() / max(counts.sum(), 1):.0f} %"
            rows.append([*map(str, (client, train, test, np.count_nonzero(counts))), share])
        clients = len(self.partition.train)
        hidden = f"; the first {MOST_CLIENTS} are shown" if clients > MOST_CLIENTS else ""
        title = f"{clients} clients, {self.partition.sizes.sum()} training samples{hidden}"
        return screen_table(title, ("client", "train", "test", "classes", "largest class"), rows, left=0)

    def __str__(self) -> str:
        return table_text(self.screen_table())

    def _repr_html_(self) -> str:
        return preformatted(str(self))
