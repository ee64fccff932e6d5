"""A partition as a table for the console and as pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from rayfed_kd.data.partition import Partition
from rayfed_kd.errors import shortened
from rayfed_kd.files import make_folder, remove_unfinished, writing
from rayfed_kd.results.charts.figure import save_figure
from rayfed_kd.results.charts.partition import MOST_CLIENTS, bubble_figure
from rayfed_kd.results.screen_table import preformatted, screen_table, table_text

LONGEST_NAME = 30  # of a class in the console's table


@dataclass(frozen=True)
class DrawnPartition:
    """Who holds what. Printed, and in a notebook, it shows a table of the clients.

    Attributes:
        partition: each client's samples: `train` and `test`, a list of indices for each client.
        labels: [samples] int64, the training data's.
        class_names: [classes].
    """

    partition: Partition = field(repr=False)
    labels: np.ndarray[Any, Any] = field(repr=False)
    class_names: tuple[str, ...]

    @property
    def counts(self) -> np.ndarray[Any, Any]:
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
            RecipeError: the folder cannot be written.
        """
        folder = Path(folder)
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
