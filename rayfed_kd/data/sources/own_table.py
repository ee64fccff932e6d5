"""Tables of a user's own: columns of numbers and columns of categories of a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rayfed_kd.data.dataset import Array, RawDataset, Source, check_size
from rayfed_kd.data.sources.columns import (
    CATEGORIES,
    NUMBERS,
    Parts,
    as_float32,
    codes_in,
    numbers_by_category,
    standardised,
)
from rayfed_kd.data.sources.csv_files import (
    CsvForm,
    Decimal,
    Encoding,
    NullValues,
    Separator,
    Thousands,
)
from rayfed_kd.data.sources.own_images import SplitSeed, TestFraction
from rayfed_kd.data.sources.own_text import ClientColumn, LabelColumn, TestFile, TrainFile, table_files
from rayfed_kd.data.sources.tables import (
    LabelledTables,
    feature_columns,
    number_column,
    present,
    read_labelled,
    refuse_stray_text,
)
from rayfed_kd.errors import DataError, RecipeError, in_words, shown
from rayfed_kd.recipe.roles import data_source
from rayfed_kd.recipe.sample_shapes import RowShape

FILLED = "data.missing=mean takes the training rows' mean there"
UNSEEN = 0  # the code of a category that no training row has
MANY_CATEGORIES = 20  # beyond it a category for every second row tells rows apart rather than groups them
EXACT = 2**24  # float32 has whole numbers up to it


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
    separator: Separator = ",",
    encoding: Encoding = "utf-8",
    decimal: Decimal = ".",
    thousands: Thousands = None,
    null_values: NullValues = [],  # noqa: B006 - never changed
    test_fraction: TestFraction = 0.0,
    split_seed: SplitSeed = 0,
) -> Source:
    """A CSV or Parquet file with columns of numbers and of categories, and a column of classes.

    Numbers are standardised by the training rows: less their mean, over their deviation. Each value of a
    column of categories is one; a missing text is a category, too. What only test rows have is unseen: zeros,
    or code 0. Times are numbers.
    """
    files = table_files(folder, train, test, test_fraction)
    form = CsvForm(separator, encoding, decimal, thousands, null_values)

    def decode() -> RawDataset:
        others = [] if client_column is None else [client_column]
        # Texts first: 01 and 1 are two categories, 1 and 1.0 are one.
        read = read_labelled(
            files, form, label_column, others, (test_fraction, split_seed), categorical or ()
        )
        for name in leave_out:
            present(read.files[0], read.tables[0], name, "data.leave_out")
        apart = [label_column, *others, *leave_out]
        chosen = chosen_columns(read, numeric, categorical, apart, form)
        rows = Rows(read, form, missing == "mean")
        return rows.dataset(*chosen, label_column, client_column, categories)

    settings = {
        "columns": [label_column, numeric, categorical, client_column, leave_out, form.settings],
        "form": [categories, missing],
        "test": [test_fraction, split_seed],
    }
    return Source(files, settings, decode)


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
    if twice := sorted(set(numbers) & set(groups)):
        raise RecipeError(f"{twice[0]} is listed under data.numeric as well", path="data.categorical")
    if not numbers and not groups:
        raise DataError(
            f"{read.files[0]}: no column of numbers or categories beside {', '.join(apart)}"
            f"{'; '.join(['', *read.notes])}"
        )
    return numbers, groups


class Rows:
    """Rows of labelled tables, made into samples.

    Args:
        read: the rows.
        form: how CSV files are written.
        gaps: numbers may be missing.
        option, cure: the recipe's key that names columns of numbers, and what to do where one is missing.
    """

    def __init__(
        self,
        read: LabelledTables,
        form: CsvForm,
        gaps: bool = False,
        option: str = "data.numeric",
        cure: str = FILLED,
    ) -> None:
        self._read, self._form, self._gaps = read, form, gaps
        self._option, self._cure = option, cure

    def numbers(self, names: Sequence[str], *, scaled: bool = True) -> Parts:
        """Columns of numbers side by side, of training and test rows, [n, width] float32.

        Args:
            scaled: standardised by the training rows; else as they are.
        """
        columns = list[Parts]()
        constant, huge, rounded = list[str](), list[str](), list[str]()
        for name in names:
            train, test = number_column(
                self._read, name, self._option, self._form, self._cure, gaps=self._gaps
            )
            if scaled:
                parts, same = standardised(train, test)
                constant += [name] * bool(same.all())
                huge += [name] * bool(train.values.dtype.kind == "f" and np.abs(train.values).max() > 2**53)
            else:
                if train.scale != "numbers":
                    raise DataError(
                        f"{self._read.files[0]}: the column {shown(name)} has {train.scale}, which are no "
                        "numbers as they are; expected data.scale=standard, or other columns"
                    )
                parts = as_float32(train, test)
                rounded += [name] * bool(train.values.dtype.kind != "f" and np.abs(parts[0]).max() > EXACT)
            for part in parts:
                if part is not None and not np.isfinite(part).all():
                    raise DataError(
                        f"{self._read.files[0]}: the column {shown(name)} has numbers that are too large"
                    )
            columns.append(parts)
        self._note("numbers above 2^53, of which 64 bits keep 16 digits", huge)
        self._note("one value in all training rows, and became 0", constant)
        self._note(f"whole numbers above {EXACT:,}, which 32 bits round", rounded)
        count, tested = (
            None if labels is None else len(labels) for labels in self._read.parts(self._read.labels)
        )
        none = [np.zeros((rows, 0), np.float32) for rows in (count, tested) if rows is not None]
        train_columns = [none[0], *(column[0] for column in columns)]
        test_columns = [*none[1:], *(column[1] for column in columns if column[1] is not None)]
        return np.concatenate(train_columns, axis=1), (
            np.concatenate(test_columns, axis=1) if test_columns else None
        )

    def _note(self, what: str, names: Sequence[str]) -> None:
        if names:
            have = f"column {shown(names[0])} has" if len(names) == 1 else f"columns {in_words(names)} have"
            self._read.notes.append(f"the {have} {what}")

    def codes(self, name: str) -> tuple[Parts, int]:
        """A column's categories as codes, [n, 1] float32, ascending from 1; and how many codes there are."""
        read = self._read
        for file, table in zip(read.files, read.tables, strict=True):
            present(file, table, name, "data.categorical")
        rows = None if read.test_rows is None else ~read.test_rows
        known = numbers_by_category(read.tables[0].column(name), rows)
        every = [codes_in(table.column(name), known, UNSEEN - 1) + 1 for table in read.tables]
        train, test = read.parts([codes.astype(np.float32)[:, None] for codes in every])
        if len(known) > max(MANY_CATEGORIES, len(train) / 2):
            self._note(
                f"{len(known):,} categories in {len(train):,} training rows, as names have; "
                f"data.leave_out=[{name}] leaves it out",
                [name],
            )
        if test is not None and (unseen := int((test == UNSEEN).sum())):
            self._note(f"a category that training lacks in {unseen:,} of {len(test):,} test rows", [name])
        return (train, test), len(known) + 1

    def dataset(
        self,
        numeric: Sequence[str],
        categorical: Sequence[str],
        label_column: str,
        client_column: str | None,
        categories: str,
    ) -> RawDataset:
        """The data set of rows: standardised numbers first, then the categories.

        Args:
            numeric, categorical: the columns.
            label_column, client_column: those of classes and of clients, if there is one.
            categories: "one_hot" or "codes".
        """
        read, values = self._read, self.numbers(numeric)
        coded = [self.codes(name) for name in categorical]
        sample = None
        columns = [values, *(codes for codes, _ in coded)]
        if categories == "codes":
            sample = RowShape(values[0].shape[1], [count for _, count in coded])
        else:
            width = values[0].shape[1] + sum(count - 1 for _, count in coded)
            check_size("rows with a column for each category", (sum(map(len, read.labels)), width), 4)
            columns = [values, *(_one_hot(codes, count) for codes, count in coded)]
        train = np.concatenate([column[0] for column in columns], axis=1)
        tests = [column[1] for column in columns if column[1] is not None]
        test = np.concatenate(tests, axis=1) if tests else None
        # A partition may go by categories, not by numbers.
        return read.dataset((train, test), [label_column, *numeric], client_column, sample)


def _one_hot(parts: Parts, count: int) -> Parts:
    """[n, count - 1]: the unseen category is all zeros."""

    def spread(codes: Array) -> Array:
        hot: Array = (codes == np.arange(1, count)).astype(np.float32)
        return hot

    return spread(parts[0]), None if parts[1] is None else spread(parts[1])
