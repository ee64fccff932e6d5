"""Data of a user's own as columns of a CSV file: numbers, or the names of image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source
from rayfed_kd.data.sources.own_images import (
    Colour,
    Fit,
    Size,
    SplitSeed,
    TestFraction,
    load_images,
    own_file,
)
from rayfed_kd.data.sources.tables import column_of, number_column, parsed, read_labelled
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.roles import data_source

FILLED = "The data set tabular takes the training rows' mean there: data.name=tabular data.missing=mean"


@data_source
def csv(
    folder: Path,
    *,
    train: Annotated[
        str, Field(min_length=1, description="the file, below the folder or absolute")
    ] = "train.csv",
    test: Annotated[
        str | None, Field(min_length=1, description="the official test set's file; null: none")
    ] = None,
    label_column: Annotated[
        str, Field(description="the column of classes: texts or whole numbers")
    ] = "label",
    columns: Annotated[
        list[str] | None, Field(min_length=1, description="the columns of numbers; null: all others")
    ] = None,
    image_column: Annotated[
        str | None, Field(description="a column of image files, relative to the CSV file, instead of numbers")
    ] = None,
    client_column: Annotated[
        str | None, Field(description="each row's natural client, for the partition `natural`; null: none")
    ] = None,
    separator: Annotated[str, Field(min_length=1, max_length=1, description="between columns")] = ",",
    scale: Annotated[
        Literal["standard", "none"],
        Field(description="numbers less the training rows' mean, over their deviation; or as they are"),
    ] = "standard",
    size: Size = None,
    fit: Fit = "crop",
    colour: Colour = "rgb",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV file with a column of classes and columns of numbers, or a column of image files."""
    if image_column is not None and columns is not None:
        raise RecipeError("give at most one of columns and image_column", path="data.columns")
    if test is not None and test_fraction:
        raise RecipeError("data.test is given; expected 0", path="data.test_fraction")
    train_file = own_file(folder, train, "data.train")
    test_file = None if test is None else own_file(folder, test, "data.test")
    files = [file for file in (train_file, test_file) if file is not None]
    others = [] if client_column is None else [client_column]
    # Images are files that decide about the cache as the table does, so their names are read at once.
    pictures = {file: _pictures(file, separator, image_column) for file in files} if image_column else {}

    def samples(file: Path, table: pa.Table, wanted: Sequence[str]) -> Array:
        if file in pictures:
            return load_images(pictures[file], size, fit, colour)
        return np.stack([number_column(file, table, name, cure=FILLED) for name in wanted], axis=1)

    def decode() -> RawDataset:
        read = read_labelled(files, separator, label_column, others, (test_fraction, split_seed))
        taken = (label_column, *others)
        wanted = columns or [name for name in read.tables[0].column_names if name not in taken]
        if not wanted:
            raise DataError(f"{train_file}: no column beside {', '.join(taken)}; expected one of numbers")
        every = zip(read.files, read.tables, strict=True)
        training, tested = read.parts([samples(file, table, wanted) for file, table in every])
        if training.dtype != np.uint8 and scale == "standard":
            training, tested = _standardised(training, tested)
        used = [label_column, *([image_column] if image_column else wanted)]
        return read.dataset((training, tested), used, client_column)

    settings = {
        "columns": [label_column, columns, image_column, client_column, separator, scale],
        "images": [size, fit, colour],
        "test": [test_fraction, split_seed],
    }
    every = (*files, *(file for own in pictures.values() for file in own))
    return Source(every, settings, decode)


def _pictures(file: Path, separator: str, name: str) -> list[Path]:
    column = column_of(file, parsed(file, separator), name, "data.image_column")
    paths = [file.parent / str(entry) for entry in column.to_pylist()]
    missing = next((row for row, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{file}, row {missing + 1}: no file {paths[missing].resolve()}")
    if not paths:
        raise DataError(f"{file}: no rows below the names of columns")
    return paths


def _standardised(train: Array, test: Array | None) -> tuple[Array, Array | None]:
    values = train.astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation == 0] = 1  # of a column of one value

    def scaled(samples: Array) -> Array:
        numbers: Array = ((samples - mean) / deviation).astype(np.float32)
        return numbers

    return scaled(train), None if test is None else scaled(test)
