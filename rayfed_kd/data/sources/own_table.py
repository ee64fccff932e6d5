"""Tables of a user's own: columns of numbers and columns of categories of a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, check_size
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction
from rayfed_kd.data.sources.own_text import (
    ClientColumn,
    LabelColumn,
    Separator,
    TestFile,
    TrainFile,
    table_files,
)
from rayfed_kd.data.sources.tables import LabelledTables, column_of, number_column, read_labelled
from rayfed_kd.errors import DataError, RecipeError
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import RowShape

FILLED = "data.missing=mean takes the training rows' mean there"
UNSEEN = 0  # the code of a category that no training row has
Parts = tuple[Array, Array | None]


@data_source
def tabular(
    folder: Path,
    *,
    train: TrainFile = "train.csv",
    test: TestFile = None,
    label_column: LabelColumn = "label",
    numeric: Annotated[
        list[str] | None, Field(description="the columns of numbers; null: all that hold numbers")
    ] = None,
    categorical: Annotated[
        list[str] | None,
        Field(description="the columns of categories; null: all that hold texts or true and false"),
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
    separator: Separator = ",",
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV or Parquet file with columns of numbers and of categories, and a column of classes.

    Numbers are standardised by the training rows: less their mean, over their deviation. Each value of a
    column of categories is one; a missing text is a category, too. What only test rows have is unseen: zeros,
    or code 0.
    """
    files = table_files(folder, train, test, test_fraction)

    def decode() -> RawDataset:
        others = [] if client_column is None else [client_column]
        read = read_labelled(
            files, separator, label_column, others, (test_fraction, split_seed), categorical or ()
        )
        for name in leave_out:
            if name not in read.tables[0].column_names:
                column_of(read.files[0], read.tables[0], name, "data.leave_out")
        apart = [label_column, *others, *leave_out]
        chosen = chosen_columns(read, numeric, categorical, apart)
        return row_dataset(read, *chosen, label_column, client_column, categories, gaps=missing == "mean")

    settings = {
        "columns": [label_column, numeric, categorical, client_column, leave_out, separator],
        "form": [categories, missing],
        "test": [test_fraction, split_seed],
    }
    return Source(files, settings, decode)


def chosen_columns(
    read: LabelledTables,
    numeric: Sequence[str] | None,
    categorical: Sequence[str] | None,
    apart: Sequence[str],
) -> tuple[list[str], list[str]]:
    """The columns of numbers and those of categories.

    Args:
        numeric, categorical: those that the recipe lists; None: all others that hold such values.
        apart: columns that are no features.
    Raises: RecipeError if one is listed twice, DataError if there is none.
    """
    kinds = {field.name: field.type for field in read.tables[0].schema}
    free = [name for name in kinds if name not in {*apart, *(numeric or ()), *(categorical or ())}]
    numbers = [name for name in free if _is_number(kinds[name])] if numeric is None else list(numeric)
    groups = (
        [name for name in free if _is_category(kinds[name])] if categorical is None else list(categorical)
    )
    if twice := sorted(set(numbers) & set(groups)):
        raise RecipeError(f"{twice[0]} is listed under data.numeric as well", path="data.categorical")
    if not numbers and not groups:
        raise DataError(f"{read.files[0]}: no column of numbers or categories beside {', '.join(apart)}")
    return numbers, groups


def row_dataset(
    read: LabelledTables,
    numeric: Sequence[str],
    categorical: Sequence[str],
    label_column: str,
    client_column: str | None,
    categories: str,
    *,
    gaps: bool = False,
) -> RawDataset:
    """The data set of rows: standardised numbers first, then the categories.

    Args:
        read: the rows.
        numeric, categorical: the columns.
        label_column, client_column: those of classes and of clients, if there is one.
        categories: "one_hot" or "codes".
        gaps: numbers may be missing.
    """
    values = _standardised(_numbers(read, numeric, gaps=gaps))
    coded = [_codes(read, name) for name in categorical]
    sample = None
    columns = [values, *(codes for codes, _ in coded)]
    if categories == "codes":
        sample = RowShape(len(numeric), [count for _, count in coded])
    else:
        width = len(numeric) + sum(count - 1 for _, count in coded)
        check_size("rows with a column for each category", (sum(map(len, read.labels)), width), 4)
        columns = [values, *(_one_hot(codes, count) for codes, count in coded)]
    train = np.concatenate([column[0] for column in columns], axis=1)
    tests = [column[1] for column in columns if column[1] is not None]
    test = np.concatenate(tests, axis=1) if tests else None
    # A partition may go by categories, not by numbers.
    return read.dataset((train, test), [label_column, *numeric], client_column, sample)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_category(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind))


def _numbers(read: LabelledTables, names: Sequence[str], *, gaps: bool) -> Parts:
    every = []
    for file, table in zip(read.files, read.tables, strict=True):
        columns = [number_column(file, table, name, "data.numeric", gaps=gaps, cure=FILLED) for name in names]
        every.append(np.stack(columns, axis=1) if columns else np.zeros((table.num_rows, 0), np.float32))
    return read.parts(every)


def _standardised(parts: Parts) -> Parts:
    """Less the training rows' mean, over their deviation; what is missing becomes the mean, 0."""
    train = parts[0].astype(np.float64)
    there = np.isfinite(train)
    counts = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, train, 0).sum(axis=0) / counts
    deviation = np.sqrt((np.where(there, train - mean, 0) ** 2).sum(axis=0) / counts)
    deviation[deviation == 0] = 1  # of a column of one value

    def scaled(values: Array) -> Array:
        numbers: Array = np.nan_to_num((values - mean) / deviation, nan=0.0).astype(np.float32)
        return numbers

    return scaled(parts[0]), None if parts[1] is None else scaled(parts[1])


def _codes(read: LabelledTables, name: str) -> tuple[Parts, int]:
    """A column's categories as codes, [n, 1] float32, ascending from 1; and how many codes there are."""
    every = []
    for file, table in zip(read.files, read.tables, strict=True):
        if table.column_names.count(name) != 1:
            column_of(file, table, name, "data.categorical")
        every.append(np.array(["" if one is None else str(one) for one in table.column(name).to_pylist()]))
    train, test = read.parts(every)
    known = np.unique(train)

    def coded(values: Array) -> Array:
        places = np.searchsorted(known, values).clip(max=len(known) - 1)
        codes: Array = np.where(known[places] == values, places + 1, UNSEEN).astype(np.float32)[:, None]
        return codes

    return (coded(train), None if test is None else coded(test)), len(known) + 1


def _one_hot(parts: Parts, count: int) -> Parts:
    """[n, count - 1]: the unseen category is all zeros."""

    def spread(codes: Array) -> Array:
        hot: Array = (codes == np.arange(1, count)).astype(np.float32)
        return hot

    return spread(parts[0]), None if parts[1] is None else spread(parts[1])
