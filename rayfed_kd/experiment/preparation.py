"""From a recipe to what can be run: everything that can be refused before a run is refused here.

A recipe's partition can be drawn and shown without a run.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_kd.errors import naming
from rayfed_kd.recipe.loading import RecipeSource, load_recipe
from rayfed_kd.recipe.overrides import Overrides, override_lines
from rayfed_kd.recipe.registry import find_modules, locate
from rayfed_kd.recipe.schema import Recipe

if TYPE_CHECKING:
    from rayfed_kd.results.charts.partition import DrawnPartition
    from rayfed_kd.setting.blueprint import Blueprint
    from rayfed_kd.setting.setting import Setting

# Modules are built and tried with the process's own random generators, which all threads share: two runs of
# a comparison that are prepared at the same time would draw from one another's.
_PREPARING = threading.Lock()


@dataclass(frozen=True)
class Prepared:
    """A recipe that passed every check.

    Attributes:
        recipe: resolved.
        blueprint: what other processes build the setting from.
        setting: the same in this process.
    """

    recipe: Recipe
    blueprint: Blueprint
    setting: Setting


def prepare(source: RecipeSource, overrides: Overrides = (), **keys: Any) -> Prepared:
    """Load a recipe and check all that can be checked before a run.

    Args:
        source: a YAML file's path, a name of `rayfed-kd recipes`, or the recipe as nested mappings.
        overrides, keys: as in `run`.
    Raises: RecipeError or DataError.
    """
    with naming(source):
        return make_ready(load_recipe(source, override_lines(overrides, keys)))


def method_location(recipe: Recipe) -> str:
    """Where the recipe's method is.

    Raises: RecipeError if its name is unknown.
    """
    from rayfed_kd.algorithms import METHODS

    return locate(recipe.method.name, METHODS, "method.name")


def make_ready(recipe: Recipe, *, measured: bool = False) -> Prepared:
    """`prepare` of a resolved recipe.

    Args:
        recipe: resolved.
        measured: it is a recipe that passed, on few of its samples: whether these suffice is not looked at.

    Raises: RecipeError or DataError.
    """
    with _PREPARING:
        return _checked(recipe, measured)


def _checked(recipe: Recipe, measured: bool) -> Prepared:
    location = method_location(recipe)
    folders = find_own_modules()
    from rayfed_kd.experiment.evaluated_metrics import check_stop
    from rayfed_kd.results.trackers.tracking import make_trackers
    from rayfed_kd.setting.blueprint import Blueprint, make_method, read_names
    from rayfed_kd.setting.client_samples import check_samples
    from rayfed_kd.setting.code_identity import own_code
    from rayfed_kd.setting.loading import load_data, load_partition
    from rayfed_kd.setting.metrics import check_metrics
    from rayfed_kd.timing.reading import check_exchanges, check_timing

    method = make_method(location, recipe.method)
    check_exchanges(recipe, method)
    timing, codecs = read_names(recipe)
    make_trackers(recipe)
    check_timing(timing, recipe, method)
    devices = timing.load_devices()
    dataset = load_data(recipe)
    partition = load_partition(recipe, dataset)
    blueprint = Blueprint(
        recipe=recipe,
        method=location,
        pickled_parts=pickle.dumps((method, timing, codecs)),
        dataset_folder=str(dataset.folder),
        partition=partition,
        devices=devices,
        import_paths=folders,
        own_code=own_code(recipe),
    )
    # As every other process builds it, unpickling included: what fails there fails here, before the run.
    setting = blueprint.build()
    setting.check()
    if not measured:
        check_samples(setting)
    check_metrics(recipe, dataset.classes)
    check_stop(setting)
    return Prepared(recipe, replace(blueprint, outcomes=setting.architectures.outcomes), setting)


def find_own_modules() -> tuple[str, ...]:
    """The command's folder on the import path, for `my_method:MyMethod`; gives that folder."""
    folders = (str(Path.cwd()),)
    find_modules(folders)
    return folders


def partition(recipe: RecipeSource, overrides: Overrides = (), **keys: Any) -> DrawnPartition:
    """Draw a recipe's partition, without a run.

    Args:
        recipe: a YAML file's path, a name of `rayfed-kd recipes`, or the recipe as nested mappings.
        overrides, keys: as in `run`.

    Raises: RecipeError or DataError.
    """
    import numpy as np

    from rayfed_kd.results.charts.partition import DrawnPartition
    from rayfed_kd.setting.blueprint import read_names
    from rayfed_kd.setting.loading import load_data, load_partition

    find_own_modules()
    with naming(recipe):
        resolved = load_recipe(recipe, override_lines(overrides, keys))
        read_names(resolved)
        dataset = load_data(resolved)
        drawn = load_partition(resolved, dataset)
    return DrawnPartition(drawn, np.asarray(dataset.train.labels), dataset.class_names)
