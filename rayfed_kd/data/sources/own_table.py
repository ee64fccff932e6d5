"""Tables of a user's own, CSV or Parquet: columns of numbers and categories, or a column of image files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rayfed_kd.data.dataset import RawDataset, Source
from rayfed_kd.data.sources.columns import CATEGORIES, NUMBERS
from rayfed_kd.data.sources.csv_files import (
    CsvForm,
    Decimal,
    Encoding,
    NullValues,
    Separator,
    Thousands,
)
from rayfed_kd.data.sources.features import Rows, feature_columns, refuse_stray_text
from rayfed_kd.data.sources.own_images import Colour, Fit, Size, SplitSeed, TestFraction, load_images
from rayfed_kd.data.sources.own_text import ClientColumn, LabelColumn, TestFile, TrainFile, table_files
from rayfed_kd.data.sources.tables import LabelledTables, column_of, parsed, present, read_labelled
from rayfed_kd.errors import DataError, RecipeError, shown
from rayfed_kd.recipe.roles import data_source


@data_source
def tabular(
    folder: Path,
    *,
    train: TrainFile = "train.csv",
    test: TestFile = None,
    label_column: LabelColumn = "label",
    numeric: Annotated[
        list[str] | None, Field(description="the columns of numbers; null: all that hold numbers or times")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        Field(
            description="the columns of categories; null: all that hold texts, categories or true and false"
        ),
    ] = None,
    client_column: ClientColumn = None,
    leave_out: Annotated[
        list[str], Field(description="columns that are no features; partitions may go by them")
    ] = [],  # noqa: B006 - never changed
    categories: Annotated[
        Literal["one_hot", "codes"],
        Field(description="0 and 1 for each category, for any model of numbers; or codes, for `row_mlp`"),
    ] = "one_hot",
    missing: Annotated[
        Literal["refuse", "mean"],
        Field(description="of numbers that are missing: an error, or the training rows' mean"),
    ] = "refuse",
    image_column: Annotated[
        str | None, Field(description="a column of image files, relative to the table, instead of features")
    ] = None,
    size: Size = None,
    fit: Fit = "crop",
    colour: Colour = "rgb",
    separator: Separator = ",",
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = None,
    null_values: NullValues = [],  # noqa: B006 - never changed
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV or Parquet file with a column of classes, and columns of numbers and of categories, or of images.

    Numbers are standardised by the training rows: less their mean, over their deviation. Each value of a
    column of categories is one; a missing text is a category, too. What only test rows have is unseen: zeros,
    or code 0. Times are numbers.
    """
    if image_column is not None and (numeric or categorical):
        raise RecipeError("images have no further features", path="data.image_column")
    files = table_files(folder, train, test, test_fraction)
    form = CsvForm(separator, encoding, decimal, thousands, null_values)
    others = [] if client_column is None else [client_column]
    # Texts first: 01 and 1 are two categories, 1 and 1.0 are one.
    texts = (categorical or ()) if image_column is None else [image_column]
    # Images are files that decide about the cache as the table does, so their names are read at once.
    images = {} if image_column is None else {file: _images_of(file, form, image_column) for file in files}

    def decode() -> RawDataset:
        read = read_labelled(files, form, label_column, others, (test_fraction, split_seed), texts)
        for name in leave_out:
            present(read.files[0], read.tables[0], name, "data.leave_out")
        if image_column is not None:
            samples = read.parts([load_images(images[file], size, fit, colour) for file in read.files])
            return read.dataset(samples, [label_column, image_column], client_column)
        apart = [label_column, *others, *leave_out]
        chosen = chosen_columns(read, numeric, categorical, apart, form)
        rows = Rows(read, form, missing == "mean")
        return rows.dataset(*chosen, label_column, client_column, categories)

    return Source((*files, *(image for own in images.values() for image in own)), {}, decode)


def _images_of(file: Path, form: CsvForm, name: str) -> list[Path]:
    """The image files that a column names, by row."""
    table = parsed(file, form, [name])
    present(file, table, name, "data.image_column")
    paths = [file.parent / str(entry) for entry in column_of(file, table, name).to_pylist()]
    missing = next((row for row, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{file}, row {missing + 1}: no file {paths[missing].resolve()}")
    if not paths:
        raise DataError(f"{file}: no rows below the names of columns")
    return paths


def chosen_columns(
    read: LabelledTables,
    numeric: Sequence[str] | None,
    categorical: Sequence[str] | None,
    apart: Sequence[str],
    form: CsvForm,
) -> tuple[list[str], list[str]]:
    """The columns of numbers and those of categories.

    Args:
        numeric, categorical: those that the recipe lists; None: all others that hold such values.
        apart: columns that are no features.
        form: how CSV files are written.
    Raises: RecipeError if one is listed twice, DataError if there is none or one is neither.
    """
    listed = [*(numeric or ()), *(categorical or ())]
    kinds = feature_columns(read, apart, listed)
    free = {name: what for name, what in kinds.items() if name not in listed}
    numbers = list(numeric or ()) if numeric is not None else [n for n in free if free[n] in NUMBERS]
    groups = (
        list(categorical or ()) if categorical is not None else [n for n in free if free[n] in CATEGORIES]
    )
    for name in groups if categorical is None else ():
        if free[name] == "texts":
            more = f", data.categorical=[{name}] takes the texts as categories"
            refuse_stray_text(read.files[0], read.tables[0], name, form, more)
    odd = [name for name, what in free.items() if what not in (*NUMBERS, *CATEGORIES)]
    if odd and (numeric is None or categorical is None):
        raise DataError(
            f"{read.files[0]}: the column {shown(odd[0])} holds {free[odd[0]]}; expected numbers, times, "
            f"texts, categories or true and false. data.leave_out=[{odd[0]}] leaves it out"
        )
    if twice := [name for name, count in Counter([*numbers, *groups]).items() if count > 1]:
        raise RecipeError(f"{shown(twice[0])} is listed twice, here or in data.numeric", "data.categorical")
    if not numbers and not groups:
        raise DataError(
            f"{read.files[0]}: no column of numbers or categories beside {', '.join(apart)}"
            f"{'; '.join(['', *read.notes])}"
        )
    return numbers, groups
