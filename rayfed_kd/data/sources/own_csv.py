"""Data of a user's own as columns of a CSV file: numbers, or the names of image files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rayfed_kd.data.dataset import RawDataset, Source
from rayfed_kd.data.sources.csv_files import (
    CsvForm,
    Decimal,
    Encoding,
    NullValues,
    Separator,
    Thousands,
)
from rayfed_kd.data.sources.features import Rows, feature_columns
from rayfed_kd.data.sources.own_images import Colour, Fit, Size, SplitSeed, TestFraction, load_images
from rayfed_kd.data.sources.own_text import ClientColumn, LabelColumn, TestFile, TrainFile, table_files
from rayfed_kd.data.sources.tables import column_of, parsed, present, read_labelled
from rayfed_kd.errors import DataError, RecipeError, shown
from rayfed_kd.recipe.roles import data_source

FILLED = "The data set tabular takes the training rows' mean there: data.name=tabular data.missing=mean"


@data_source
def csv(
    folder: Path,
    *,
    train: TrainFile = "train.csv",
    test: TestFile = None,
    label_column: LabelColumn = "label",
    columns: Annotated[
        list[str] | None, Field(min_length=1, description="the columns of numbers; null: all others")
    ] = None,
    image_column: Annotated[
        str | None, Field(description="a column of image files, relative to the CSV file, instead of numbers")
    ] = None,
    client_column: ClientColumn = None,
    separator: Separator = ",",
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = None,
    null_values: NullValues = [],  # noqa: B006 - never changed
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
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise RecipeError(f"{shown(twice)} is listed twice", path="data.columns")
    files = table_files(folder, train, test, test_fraction)
    form = CsvForm(separator, encoding, decimal, thousands, null_values)
    others = [] if client_column is None else [client_column]
    # Images are files that decide about the cache as the table does, so their names are read at once.
    pictures = {file: _pictures(file, form, image_column) for file in files} if image_column else {}

    def decode() -> RawDataset:
        read = read_labelled(
            files,
            form,
            label_column,
            others,
            (test_fraction, split_seed),
            [image_column] if image_column else (),
        )
        if image_column:
            samples = read.parts([load_images(pictures[file], size, fit, colour) for file in read.files])
            return read.dataset(samples, [label_column, image_column], client_column)
        apart = (label_column, *others)
        free = feature_columns(read, apart, columns or ())
        wanted = columns or list(free)
        if not wanted:
            raise DataError(f"{files[0]}: no column beside {', '.join(apart)}; expected one of numbers")
        rows = Rows(read, form, option="data.columns", cure=FILLED)
        samples = rows.numbers(wanted, scaled=scale == "standard")
        return read.dataset(samples, [label_column, *wanted], client_column)

    settings = {
        "columns": [label_column, columns, image_column, client_column, form.settings, scale],
        "images": [size, fit, colour],
        "test": [test_fraction, split_seed],
    }
    every = (*files, *(file for own in pictures.values() for file in own))
    return Source(every, settings, decode)


def _pictures(file: Path, form: CsvForm, name: str) -> list[Path]:
    table = parsed(file, form, [name])
    present(file, table, name, "data.image_column")
    paths = [file.parent / str(entry) for entry in column_of(file, table, name).to_pylist()]
    missing = next((row for row, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{file}, row {missing + 1}: no file {paths[missing].resolve()}")
    if not paths:
        raise DataError(f"{file}: no rows below the names of columns")
    return paths
