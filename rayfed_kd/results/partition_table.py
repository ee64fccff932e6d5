"""A partition in numbers, as a table for the console, and its pictures' files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import shortened
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.partition import MOST_CLIENTS, bubble_figure, heat_map_figure

Array = np.ndarray[Any, Any]
LONGEST_NAME = 30  # of a class in the console's table


def summary_rows(partition: Partition, labels: Array, classes: int) -> list[dict[str, Any]]:
    """A row per client with the numbers of its part.

    Args:
        partition: the split.
        labels: [samples], the training data's labels.
        classes: the number of classes.

    Returns: client, train and test (samples), classes (how many are present), largest_class and
        largest_share, its share in [0, 1].
    """
    rows = []
    for client, row in enumerate(partition.counts(labels, classes)):
        rows.append(
            {
                "client": client,
                "train": len(partition.train[client]),
                "test": len(partition.test[client]),
                "classes": int(np.count_nonzero(row)),
                "largest_class": int(row.argmax()),
                "largest_share": float(row.max() / max(row.sum(), 1)),
            }
        )
    return rows


def partition_table(partition: Partition, labels: Array, class_names: Sequence[str]) -> Table:
    """`summary_rows` as a table for the console: the first hundred clients; the title says if there are more.

    Args:
        partition: the split.
        labels: [samples], the training data's labels.
        class_names: [classes].
    """
    rows = summary_rows(partition, labels, len(class_names))
    hidden = f"; the first {MOST_CLIENTS} are shown" if len(rows) > MOST_CLIENTS else ""
    table = Table(title=f"{len(rows)} clients, {partition.sizes.sum()} training samples{hidden}")
    for column in ("client", "train", "test", "classes", "largest class"):
        table.add_column(column, justify="right")
    for row in rows[:MOST_CLIENTS]:
        name = shortened(class_names[row["largest_class"]], LONGEST_NAME)
        share = Text(f"{name}: {100 * row['largest_share']:.0f} %")
        table.add_row(*(str(row[column]) for column in ("client", "train", "test", "classes")), share)
    return table


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
