"""A recipe's partition, drawn and shown without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import naming
from rayfed_kd.experiment.preparation import find_own_modules
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines

if TYPE_CHECKING:
    from rayfed_kd.results.charts.drawn_partition import DrawnPartition


def partition(recipe: RecipeSource, overrides: Overrides = (), **keys: Any) -> DrawnPartition:
    """Draw a recipe's partition, without a run.

    Args:
        recipe: a YAML file's path, a name of `rayfed-kd recipes`, or the recipe as nested mappings.
        overrides, keys: as in `run`.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.results.charts.drawn_partition import DrawnPartition
    from rayfed_kd.setting.blueprint import read_names
    from rayfed_kd.setting.loading import load_data, load_partition

    find_own_modules()
    with naming(recipe):
        resolved = load_recipe(recipe, override_lines(overrides, keys))
        read_names(resolved)
        dataset = load_data(resolved)
        drawn = load_partition(resolved, dataset)
    return DrawnPartition(drawn, np.asarray(dataset.train.labels), dataset.class_names)
