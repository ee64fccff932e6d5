"""Data of a user's own as columns of a CSV file, or as arrays of an .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pydantic import Field

from rayfed_kd.data.dataset import MOST_CLASSES, Array, RawDataset, Source, Split
from rayfed_kd.data.own_images import Colour, Fit, Size, SplitSeed, TestFraction, held_out, load_images
from rayfed_kd.errors import DataError, RecipeError, nearest, shortened, shown
from rayfed_kd.files import path_fault
from rayfed_kd.recipe.roles import data_source

GREY_OR_COLOUR = (1, 3)


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
    train_file = _file(folder, train, "data.train")
    test_file = None if test is None else _file(folder, test, "data.test")
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


@data_source
def npz(
    folder: Path,
    *,
    file: Annotated[str, Field(min_length=1, description="the .npz file, below the folder or absolute")],
    images: Annotated[str, Field(description="the key of the training samples")] = "x_train",
    labels: Annotated[str, Field(description="the key of their labels")] = "y_train",
    test_images: Annotated[
        str | None, Field(description="the key of the official test set's samples; null: none")
    ] = "x_test",
    test_labels: Annotated[str | None, Field(description="the key of their labels")] = "y_test",
    channels: Annotated[
        Literal["auto", "first", "last"],
        Field(description="where images have theirs; auto: where one or three of them are"),
    ] = "auto",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """Arrays in a NumPy file: uint8 pixels [n, h, w] or with channels, or numbers [n, ...], and labels [n].

    Without arrays of the two default test keys there is no official test set.
    """
    path = _file(folder, file, "data.file")
    if (test_images is None) != (test_labels is None):
        raise RecipeError("test_images and test_labels: give both, or null for both", path="data.test_images")

    def decode() -> RawDataset:
        arrays = _read_arrays(path)
        there = test_images is not None and test_labels is not None
        default = (test_images, test_labels) == ("x_test", "y_test")
        if there and default and not {"x_test", "y_test"} & set(arrays):
            there = False
        train = _split_of(path, arrays, images, labels, channels)
        test = _split_of(path, arrays, str(test_images), str(test_labels), channels) if there else None
        if test is not None and test_fraction:
            raise RecipeError(f"{path} has a test set; expected 0", path="data.test_fraction")
        if test is None:
            train, test = held_out(train, test_fraction, split_seed)
        top = max(int(split.labels.max()) for split in (train, test) if split is not None)
        return RawDataset(train, test, tuple(str(label) for label in range(top + 1)))

    keys = [images, labels, test_images, test_labels, channels]
    return Source((path,), {"keys": keys, "test": [test_fraction, split_seed]}, decode)


def _file(folder: Path, name: str, option: str) -> Path:
    """Raises: DataError if there is no such file."""
    if fault := path_fault(name):
        raise DataError(f"{option}: {fault}")
    path = folder / name
    if path.is_file():
        return path
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    hint = f" Did you mean {near}?" if near else ""
    raise DataError(
        f"{option} = {shown(name)}: no file {path.resolve()}; data.folder says where it lies.{hint}"
    )


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


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise DataError(
                f"{path}: one array without a key; expected an .npz file, as numpy.savez writes it"
            )
        with stored:
            return {key: stored[key] for key in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not readable as .npz ({shortened(str(error), 300)})") from None


def _split_of(path: Path, arrays: dict[str, Any], images: str, labels: str, channels: str) -> Split:
    for key in (images, labels):
        if key not in arrays:
            near = nearest(key, arrays)
            hint = f" Did you mean {near}?" if near else ""
            keys = shortened(", ".join(arrays), 300)
            raise DataError(
                f"{path}: no array {shown(key)}; there are {keys}: data.images and such name them.{hint}"
            )
    values, classes = arrays[images], arrays[labels]
    if classes.ndim == 2 and classes.shape[1] == 1:
        classes = classes[:, 0]  # as Keras keeps CIFAR's
    if classes.ndim != 1 or classes.dtype.kind not in "iu" or len(classes) != len(values) or not len(classes):
        raise DataError(
            f"{path}: {labels} is {classes.dtype} of {classes.shape}; expected a whole number for each of "
            f"{len(values)} samples"
        )
    if classes.min() < 0 or classes.max() >= MOST_CLASSES:
        raise DataError(
            f"{path}: {labels} has labels from {classes.min()} to {classes.max()}, expected 0 to "
            f"{MOST_CLASSES - 1} at most"
        )
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise DataError(
            f"{path}: {images} is {values.dtype}; expected pixels as uint8, or floating-point numbers"
        )
    if values.dtype.kind == "f":
        values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}: {images} has values that are NaN or infinite")
    return Split(_channels_first(path, images, values, channels), classes.astype(np.int64))


def _channels_first(path: Path, key: str, values: Array, channels: str) -> Array:
    if values.ndim == 3:  # grey images
        return values[:, None]
    if values.ndim == 2 and values.dtype != np.uint8:
        return values
    if values.ndim != 4:
        raise DataError(
            f"{path}: {key} has {values.ndim} dimensions; expected [n, h, w] or, with channels, 4 of pixels, "
            "or [n, d] of floating-point numbers"
        )
    if channels == "auto":
        first, last = values.shape[1] in GREY_OR_COLOUR, values.shape[3] in GREY_OR_COLOUR
        if first == last:
            raise RecipeError(
                f"{path}: {key} is {values.shape}; expected first or last", path="data.channels"
            )
        channels = "first" if first else "last"
    return values if channels == "first" else np.moveaxis(values, 3, 1)
