"""Images of a user's own, one file each: a folder with a subfolder for each class; what own files share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, Split, of_each_class
from rayfed_kd.data.sources.image_tree import image_tree
from rayfed_kd.data.sources.pixels import Colour, Fit, Fitting, Size, load_images
from rayfed_kd.errors import DataError, RecipeError, in_words, shown
from rayfed_kd.files.folders import path_fault
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.seeds import numpy_stream

Part = Annotated[
    str | None,
    Field(
        min_length=1, description="its folder below data.folder; `.`: that itself; null: known by its name"
    ),
]
TestFraction = Annotated[
    float, Field(ge=0, lt=1, description="share of each class that is set apart as the official test set")
]
SplitSeed = Annotated[int, Field(ge=0, description="seed of that draw, apart from the run's")]


@data_source
def image_folder(
    folder: Path,
    *,
    train: Part = None,
    test: Part = None,
    size: Size = None,
    fit: Fit = "crop",
    colour: Colour = "rgb",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """Image files in one folder for each class, as torchvision's ImageFolder has them.

    `data.folder` has the classes' folders, or parts as `train` and `test` that have them. Hidden files and
    other files than images are left out.
    """
    if not folder.is_dir():
        raise DataError(
            f"data.folder: no folder {folder.resolve()}; expected one with a folder for each class"
        )
    trained, tested, notes = image_tree(folder, train, test)
    names, fitting = tuple(trained), Fitting(size, fit, colour)

    def decode() -> RawDataset:
        official = split_of_files(tested, names, fitting) if tested else None
        splits = with_test(split_of_files(trained, names, fitting), official, test_fraction, split_seed)
        return RawDataset(*splits, names, notes=tuple(notes))

    every = tuple(file for part in (trained, tested) for images in part.values() for file in images)
    # The names, because that of a single class is in all paths; the notes, because what is left out is not
    # among the files.
    return Source(every, {"names": names, "notes": notes}, decode)


def split_of_files(
    files: Mapping[str, Sequence[Path]], names: Sequence[str], fitting: Fitting, shape: Sequence[int] = ()
) -> Split:
    """The samples of image files.

    Args:
        files: class -> its files.
        names: of all classes; their places are the labels.
        fitting: what images are made into.
        shape: that all have; empty: that of the first.
    """
    labels = [names.index(name) for name, images in files.items() for _ in images]
    every = [file for images in files.values() for file in images]
    return Split(load_images(every, every, fitting, shape), np.array(labels, np.int64))


def with_test(train: Split, test: Split | None, fraction: float, seed: int) -> tuple[Split, Split | None]:
    """Training samples and an official test set: the data's own, or one that `held_out_rows` draws.

    Raises: RecipeError for a fraction beside a test set, or one that draws no sample.
    """
    if test is not None and fraction:
        raise RecipeError("the data have an official test set; expected 0", path="data.test_fraction")
    rows = held_out_rows(train.labels, fraction, seed)
    if test is not None or rows is None:
        return train, test
    drawn, rest = (Split(train.images[chosen], train.labels[chosen]) for chosen in (rows, ~rows))
    return rest, drawn


def held_out_rows(labels: Array, fraction: float, seed: int) -> Array | None:
    """Which samples are for the test, [n] bool: floor(fraction n_c) of each class of n_c samples.

    Args:
        labels: [n] int64.
        fraction: below 1; 0: there is no test part.
        seed: of the draw.

    Returns: None where there is no test part.
    Raises: RecipeError if no class has enough samples for one, or a seed has nothing to draw.
    """
    if not fraction:
        if seed:
            raise RecipeError("without data.test_fraction nothing is drawn; expected 0", "data.split_seed")
        return None
    test = np.zeros(len(labels), bool)
    test[of_each_class(labels, fraction, numpy_stream(seed, "official test set"))] = True
    if not test.any():
        raise RecipeError(f"{fraction:g} of each class is no sample", path="data.test_fraction")
    return test


def own_file(folder: Path, name: str, option: str) -> Path:
    """The path of a file that a recipe names.

    Args:
        folder: data.folder.
        name: below it, or absolute.
        option: the recipe's key that has the name.

    Raises: DataError if there is no such file.
    """
    files = files_of(folder, name, option)
    if len(files) > 1:
        raise DataError(f"{option} = {shown(name)} names {len(files)} files; expected one")
    return files[0]


def files_of(folder: Path, pattern: str, option: str) -> list[Path]:
    """Find the files that a pattern names.

    Args:
        folder: where a relative pattern starts.
        pattern: a path or a glob; an absolute one stands for itself.
        option: the recipe's key, for the message.
    Returns: at least one file, ascending.
    Raises: DataError if there is none.
    """
    if fault := path_fault(pattern):
        raise DataError(f"{option}: {fault}")
    path = folder / pattern  # an absolute pattern stands for itself
    if path.is_file():
        return [path]
    base = Path(path.anchor) if Path(pattern).is_absolute() else folder
    try:
        files = sorted(file for file in base.glob(str(path.relative_to(base))) if file.is_file())
    except ValueError as error:  # of `a**`, for example
        raise DataError(f"{option} = {shown(pattern)}: {error}") from None
    if not files:
        paths = sorted(file for file in folder.rglob("*") if file.is_file())
        near = ([file for file in paths if file.suffix == path.suffix] or paths)[:3]
        hint = f" There are {in_words(str(file.relative_to(folder)) for file in near)}." if near else ""
        raise DataError(
            f"{option} = {shown(pattern)} names no file in {folder.resolve()}; expected the path or glob of "
            f"files below data.folder, or an absolute one.{hint}"
        )
    return files
