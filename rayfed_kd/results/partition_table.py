"""A partition in numbers, as a table for the console, and its pictures' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import shortened
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.partition import MOST_CLIENTS, bubble_figure, heat_map_figure
from rayfed_kd.results.screen_table import screen_table

Array = np.ndarray[Any, Any]
LONGEST_NAME = 30  # of a class in the console's table


def partition_table(partition: Partition, labels: Array, class_names: Sequence[str]) -> Table:
    """A row for each of the first hundred clients; the title says if there are more.

    Args:
        partition: the split.
        labels: [samples], the training data's labels.
        class_names: [classes].

    Returns: training and test samples, how many classes are present, and the largest class with its share.
    """
    rows = []
    for client, counts in enumerate(partition.counts(labels, len(class_names))[:MOST_CLIENTS]):
        largest = shortened(class_names[counts.argmax()], LONGEST_NAME)
        train, test = len(partition.train[client]), len(partition.test[client])
        share = f"{largest}: {100 * counts.max() / max(counts.sum(), 1):.0f} %"
        rows.append([*map(str, (client, train, test, np.count_nonzero(counts))), share])
    clients = len(partition.train)
    hidden = f"; the first {MOST_CLIENTS} are shown" if clients > MOST_CLIENTS else ""
    title = f"{clients} clients, {partition.sizes.sum()} training samples{hidden}"
    return screen_table(title, ("client", "train", "test", "classes", "largest class"), rows, left=0)


def partition_pictures(
    partition: Partition, labels: Array, class_names: Sequence[str], folder: Path
) -> list[Path]:
    """Write both pictures of a partition.

    Args:
        partition: the split; its scheme and options make the title.
        labels: [samples], the training data's labels.
        class_names: [classes].
        folder: where the pictures go.

    Returns: their paths.
    """
    counts, title = partition.counts(labels, len(class_names)), partition_title(partition)
    pictures = {"bubbles": bubble_figure, "heat-map": heat_map_figure}
    paths = []
    for name, draw in pictures.items():
        paths.append(folder / f"partition-{name}.png")
        save_figure(draw(counts, class_names, title), paths[-1])
    return paths


def partition_title(partition: Partition) -> str:
    """The scheme and its options, as `dirichlet (alpha 0.1)`."""
    origin = partition.origin
    options = ", ".join(f"{key} {value}" for key, value in origin.get("options", {}).items())
    return f"{origin.get('scheme', 'partition')}{' (' + options + ')' if options else ''}"
