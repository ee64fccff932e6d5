"""A recipe's partition, drawn and shown without a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_kd.errors import naming
from rayfed_kd.experiment.preparation import find_own_modules
from rayfed_kd.files import remove_unfinished, writing
from rayfed_kd.recipe.loading import RecipeSource, load_recipe

if TYPE_CHECKING:
    from rich.table import Table


def draw_partition(source: RecipeSource, overrides: Sequence[str], out: Path) -> tuple[Table, list[Path]]:
    """A recipe's partition as a table and pictures; partition.parquet is written beside them.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.results.partition_figures import partition_pictures, partition_table
    from rayfed_kd.setting.blueprint import read_names
    from rayfed_kd.setting.loading import load_data, load_partition

    find_own_modules()
    with naming(source):
        recipe = load_recipe(source, overrides)
        read_names(recipe)
        dataset = load_data(recipe)
        partition = load_partition(recipe, dataset)
    labels = np.asarray(dataset.train.labels)
    with writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
        partition.save(out / "partition.parquet")
        pictures = partition_pictures(partition, labels, dataset.class_names, out)
        paths = [*pictures, out / "partition.parquet"]
        for path in paths:
            remove_unfinished(path.parent, path.name)
    return partition_table(partition, labels, dataset.classes), paths
