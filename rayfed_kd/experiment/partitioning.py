"""A recipe's partition, drawn and shown without a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import naming
from rayfed_kd.experiment.preparation import find_own_modules
from rayfed_kd.files import make_folder, remove_unfinished, writing
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from rich.table import Table

    from rayfed_kd.data.partition import Partition


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
        from rayfed_kd.results.charts.partition import bubble_figure
        from rayfed_kd.results.partition_table import partition_title

        return bubble_figure(self.counts, self.class_names, partition_title(self.partition))

    def save(self, folder: str | Path) -> list[Path]:
        """Write both pictures and partition.parquet, which `partition.file` of a recipe reads.

        Args:
            folder: made if it is not there.

        Returns: the files' paths.

        Raises:
            RecipeError: the folder cannot be written.
        """
        from rayfed_kd.results.partition_table import partition_pictures

        folder = Path(folder)
        with writing(folder, "--out"):
            make_folder(folder)
            self.partition.save(folder / "partition.parquet")
            pictures = partition_pictures(self.partition, self.labels, self.class_names, folder)
            paths = [*pictures, folder / "partition.parquet"]
            for path in paths:
                remove_unfinished(path.parent, path.name)
        return paths

    def screen_table(self) -> Table:
        """A row for each client, for a terminal."""
        from rayfed_kd.results.partition_table import partition_table

        return partition_table(self.partition, self.labels, self.class_names)

    def __str__(self) -> str:
        from rayfed_kd.results.screen_table import table_text

        return table_text(self.screen_table())

    def _repr_html_(self) -> str:
        from rayfed_kd.results.screen_table import preformatted

        return preformatted(str(self))


def partition(recipe: RecipeSource, overrides: Overrides = (), **keys: Any) -> DrawnPartition:
    """Draw a recipe's partition, without a run.

    Args:
        recipe: a YAML file's path, a name of `rayfed-kd recipes`, or the recipe as nested mappings.
        overrides, keys: as in `run`.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.setting.blueprint import read_names
    from rayfed_kd.setting.loading import load_data, load_partition

    find_own_modules()
    with naming(recipe):
        resolved = load_recipe(recipe, override_lines(overrides, keys))
        read_names(resolved)
        dataset = load_data(resolved)
        drawn = load_partition(resolved, dataset)
    return DrawnPartition(drawn, np.asarray(dataset.train.labels), dataset.class_names)
