"""The data and the partition that a recipe asks for."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from rayfed_kd.data.augment import check_augmentation
from rayfed_kd.data.dataset import Dataset, of_rows
from rayfed_kd.data.loading import find_source, load_dataset
from rayfed_kd.data.partition import SCHEMES, Partition, Pool, draw_public, make_partition
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.schema import Recipe
from rayfed_kd.recipe.sections.data import PartitionRecipe, PublicRecipe
from rayfed_kd.recipe.seeds import numpy_stream

DIVIDED = "from_source"  # the partition of data that come divided


def find_data(recipe: Recipe) -> None:
    """Check that the recipe's data exists, without opening it.

    Raises: DataError if it is missing; RecipeError if a fraction is left that was chosen for other data.
    """
    find_source(recipe.data.name, _data_folder(recipe), recipe.data.options)
    if recipe.fraction_fault:
        raise RecipeError(recipe.fraction_fault)


def _data_folder(recipe: Recipe) -> Path | None:
    return None if recipe.data.folder is None else Path(recipe.data.folder).expanduser()


def load_data(recipe: Recipe) -> Dataset:
    """The recipe's data, decoded and memory-mapped.

    Raises: DataError if it is missing or damaged, RecipeError if it does not fit the recipe.
    """
    if recipe.fraction_fault:
        raise RecipeError(recipe.fraction_fault)
    dataset = load_dataset(recipe.data.name, _data_folder(recipe), recipe.data.fraction, recipe.data.options)
    check_augmentation(recipe.data.augment, dataset.shape)
    if recipe.partition.test == "official" and dataset.test is None:
        raise RecipeError(
            f"partition.test = 'official': {dataset.name} has no official test set; use 'local'"
        )
    return dataset


def load_partition(recipe: Recipe, dataset: Dataset) -> Partition:
    """The recipe's partition: read from its file, or drawn from the run's seed.

    Raises: RecipeError if it cannot be made, DataError if its file does not fit.
    """
    labels, section = np.asarray(dataset.train.labels, dtype=np.int64).view(), recipe.partition
    labels.setflags(write=False)  # what a scheme of somebody's own changes would reach no client's training
    known = hashlib.blake2b(labels.tobytes(), digest_size=8).hexdigest()  # tells orders of the samples apart
    if section.file is not None:
        partition = Partition.load(Path(section.file), len(labels))
        if partition.origin.get("labels", known) != known:
            raise DataError(
                f"partition.file: {section.file} was drawn over samples of other labels or in another order; "
                "expected the data and data.split_seed of then. Without metadata its rows are taken as given"
            )
        if len(partition.train) != section.clients:
            raise RecipeError(
                f"partition.clients = {section.clients}: {section.file} has {len(partition.train)} clients"
            )
        if section.test == "official" and len(partition.test.indices):
            raise RecipeError(f"{section.file} says what clients test on; expected local", "partition.test")
        _check_public_count(section, len(partition.public), len(labels))
        return partition
    _check_division(section, dataset)
    pool = Pool(labels, dataset.classes, dataset.writers, dataset.columns, dataset.held_out)
    if section.public is None:
        return _drawn(recipe, pool, known)
    count, stream = _public_count(section.public, len(labels)), numpy_stream(recipe.seed, "public")
    if not section.public.apart:
        # Clients keep all their samples; the public ones are some of these as well.
        return _drawn(recipe, pool, known).sharing(count, section.public.keep, stream)
    public, private = draw_public(len(labels), count, stream)
    return _drawn(recipe, of_rows(pool, private), known).beside(public, private, section.public.keep)


def _check_division(section: PartitionRecipe, dataset: Dataset) -> None:
    """Refuse the package's schemes, but the one that keeps the division, for data that come divided."""
    if dataset.held_out is None or dataset.writers is None:
        return
    if section.name in SCHEMES and section.name != DIVIDED:
        clients = int(dataset.writers.max()) + 1
        raise RecipeError(
            f"partition.name = {section.name!r}: {dataset.name} comes with each client's training and test "
            f"samples; expected {DIVIDED}, as 'partition={{name: {DIVIDED}, clients: {clients}}}'"
        )


def _public_count(section: PublicRecipe, total: int) -> int:
    """How many samples are set apart.

    Raises: RecipeError if none would be left, or fewer than are to be used.
    """
    count = section.count or max(1, round((section.fraction or 0) * total))
    if count >= total:
        raise RecipeError(f"partition.public.count = {count}: there are {total} training samples")
    if (section.keep or 0) > count:
        raise RecipeError(f"partition.public.keep = {section.keep}: there are {count} public samples")
    return count


def _check_public_count(section: PartitionRecipe, count: int, total: int) -> None:
    """A partition's file must have the public samples that the recipe asks for."""
    public = section.public
    wanted = 0 if public is None else public.keep or _public_count(public, total)
    if wanted != count:
        raise RecipeError(f"partition.public: {section.file} has {count} public samples, expected {wanted}")


def _drawn(recipe: Recipe, pool: Pool, labels: str) -> Partition:
    section = recipe.partition

    def draw() -> Partition:
        return make_partition(pool, section, numpy_stream(recipe.seed, "partition"))

    drawn = draw()
    again = drawn if section.name in SCHEMES else draw()  # ours repeat
    if (drawn.train, drawn.test) != (again.train, again.test):
        raise RecipeError(
            f"partition.name = {section.name!r}: it gave other parts the second time; expected draws from "
            "its `stream` alone, so that the seed decides the parts"
        )
    return replace(drawn, origin={**drawn.origin, "labels": labels})
