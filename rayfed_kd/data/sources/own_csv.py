"""Data of a user's own as columns of a CSV file: numbers, or the names of image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pydantic import Field

from rayfed_kd.data.dataset import MOST_CLASSES, Array, RawDataset, Source, Split
from rayfed_kd.data.sources.own_images import (
    Colour,
    Fit,
    Size,
    SplitSeed,
    TestFraction,
    held_out,
    load_images,
    own_file,
)
from rayfed_kd.errors import DataError, RecipeError, nearest, shortened, shown
from rayfed_kd.recipe.roles import data_source


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
    others = [name for name in (label_column, client_column) if name is not None]
    # Images are files that decide about the cache as the table does, so their names are read at once.
    pictures = {file: _pictures(file, separator, image_column) for file in files} if image_column else {}

    def samples(file: Path, table: pa.Table, wanted: Sequence[str]) -> Array:
        if file in pictures:
            return load_images(pictures[file], size, fit, colour)
        return np.stack([_numbers(file, table, name) for name in wanted], axis=1)

    def decode() -> RawDataset:
        tables = [_read_table(file, separator, label_column, others) for file in files]
        wanted = columns or [name for name in tables[0].column_names if name not in others]
        if not wanted:
            raise DataError(f"{train_file}: no column beside {', '.join(others)}; expected one of numbers")
        labels = [_labels(file, table, label_column) for file, table in zip(files, tables, strict=True)]
        names = sorted(set(labels[0].tolist()))
        if beyond := sorted({one for own in labels[1:] for one in own.tolist()} - set(names)):
            raise DataError(f"{test_file}: the class {shown(beyond[0])} is not in {train_file}")
        splits = [
            Split(samples(file, table, wanted), np.searchsorted(np.array(names), own).astype(np.int64))
            for file, table, own in zip(files, tables, labels, strict=True)
        ]
        training, tested = (
            (splits[0], splits[1]) if test_file else held_out(splits[0], test_fraction, split_seed)
        )
        writers = None
        if client_column is not None:
            if test_fraction:
                raise RecipeError("client_column is given; expected 0", path="data.test_fraction")
            writers = _clients(train_file, tables[0], client_column)
        if training.images.dtype != np.uint8 and scale == "standard":
            training, tested = _standardised(training, tested)
        return RawDataset(training, tested, tuple(map(str, names)), writers=writers)

    settings = {
        "columns": [label_column, columns, image_column, client_column, separator, scale],
        "images": [size, fit, colour],
        "test": [test_fraction, split_seed],
    }
    every = (*files, *(file for own in pictures.values() for file in own))
    return Source(every, settings, decode)


def _read_table(file: Path, separator: str, label: str, others: Sequence[str]) -> pa.Table:
    table = _parsed(file, separator)
    for name in others:
        _column(file, table, name, "data.label_column" if name == label else "data.client_column")
    if table.num_rows == 0:
        raise DataError(f"{file}: no rows below the names of columns")
    return table


def _parsed(file: Path, separator: str) -> pa.Table:
    try:
        options = arrow_csv.ParseOptions(delimiter=separator)
        return arrow_csv.read_csv(file, parse_options=options)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not readable as CSV ({shortened(str(error), 300)})") from None


def _column(file: Path, table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """A column without gaps.

    Raises: DataError if there is none, or a row has no value.
    """
    if table.column_names.count(name) != 1:
        near = nearest(name, table.column_names)
        hint = f" Did you mean {near}?" if near else ""
        several = "two columns" if name in table.column_names else "no column"
        columns = shortened(", ".join(table.column_names), 300)
        raise DataError(
            f"{option} = {shown(name)}: {file} has {several} of this name; there are {columns}.{hint}"
        )
    column = table.column(name)
    if column.null_count:
        row = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
        raise DataError(
            f"{file}, row {row + 1}: no value in the column {shown(name)}; {column.null_count} have none"
        )
    return column


def _numbers(file: Path, table: pa.Table, name: str) -> Array:
    column = _column(file, table, name, "data.columns")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(
            f"{file}: the column {shown(name)} is {column.type}, expected numbers; data.columns names those "
            "that are used"
        )
    values: Array = column.to_numpy().astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(
            f"{file}, row {row + 1}: {values[row]} in the column {shown(name)}; expected finite numbers"
        )
    return values


def _labels(file: Path, table: pa.Table, name: str) -> Array:
    column = _column(file, table, name, "data.label_column")
    if not (
        pa.types.is_integer(column.type)
        or pa.types.is_string(column.type)
        or pa.types.is_boolean(column.type)
    ):
        raise DataError(f"{file}: the column {shown(name)} is {column.type}, expected texts or whole numbers")
    values = np.array(column.to_pylist())
    if (count := len(np.unique(values))) > MOST_CLASSES:
        raise DataError(
            f"{file}: {count:,} classes in the column {shown(name)}; expected {MOST_CLASSES:,} at most"
        )
    return values


def _clients(file: Path, table: pa.Table, name: str) -> Array:
    values = np.array(list(map(str, _column(file, table, name, "data.client_column").to_pylist())))
    clients: Array = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return clients


def _pictures(file: Path, separator: str, name: str) -> list[Path]:
    column = _column(file, _parsed(file, separator), name, "data.image_column")
    paths = [file.parent / str(entry) for entry in column.to_pylist()]
    missing = next((row for row, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{file}, row {missing + 1}: no file {paths[missing].resolve()}")
    if not paths:
        raise DataError(f"{file}: no rows below the names of columns")
    return paths


def _standardised(train: Split, test: Split | None) -> tuple[Split, Split | None]:
    values = train.images.astype(np.float64)
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation == 0] = 1  # of a column of one value

    def scaled(split: Split) -> Split:
        return Split(((split.images - mean) / deviation).astype(np.float32), split.labels)

    return scaled(train), None if test is None else scaled(test)
