"""Features of tables: columns as standardised numbers and as categories, of training and test rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayfed_kd.data.dataset import Array, RawDataset, check_size
from rayfed_kd.data.sources.columns import (
    NOTHING,
    NUMBERS,
    Numbers,
    Parts,
    codes_in,
    meaning,
    numbers_by_category,
    numbers_of,
    standardised,
)
from rayfed_kd.data.sources.csv_files import CsvForm, is_time, stray_text
from rayfed_kd.data.sources.tables import (
    ROW_NUMBERS,
    LabelledTables,
    column_of,
    counts_rows,
    is_parquet,
    pandas_index,
    present,
)
from rayfed_kd.errors import DataError, RecipeError, in_words, setting, shortened, shown
from rayfed_kd.recipe.sample_shapes import RowShape

FILLED = "data.missing=mean takes the training rows' mean there"
DATE = re.compile(r"\d{1,4}([./-])\d{1,2}\1\d{1,4}")  # in any order; Arrow reads 2021-04-30 by itself
AMOUNT = re.compile(r"[-+]?([$€£¥] ?\d[\d.,]*[kKmM]?|\d[\d.,]* ?[%$€£¥])")
UNSEEN = 0  # the code of a category that no training row has
MANY_CATEGORIES = 20  # beyond it a category for every second row tells rows apart rather than groups them


def feature_columns(read: LabelledTables, apart: Sequence[str], listed: Sequence[str]) -> dict[str, str]:
    """The columns of the training file that can be features: name -> what `meaning` says.

    Columns without values and an index of pandas that numbers the rows are left out, which is noted, unless
    they are listed.

    Args:
        apart: columns that are no features; the first has the classes.
        listed: columns that the recipe names as features.
    Raises: RecipeError if the column of classes is listed.
    """
    if apart[0] in listed:
        raise RecipeError(f"{apart[0]} is listed as a feature as well", path="data.label_column")
    table, kinds, left_out = read.tables[0], dict[str, str](), list[str]()
    index = pandas_index(read.files[0])
    for field in table.schema:
        if field.name in apart:
            continue
        what, called = meaning(field), shown(field.name) if field.name else "one without a name"
        if field.name not in listed:
            if what == NOTHING:
                left_out.append(f"{called}, which has no values")
                continue
            if ROW_NUMBERS.fullmatch(field.name) or field.name in index:
                if counts_rows(table.column(field.name)):
                    left_out.append(f"{called}, which numbers the rows, as pandas' index does")
                    continue
                read.notes.append(
                    f"{shown(field.name)}, an index of pandas, is a feature; "
                    f"{setting('data.leave_out', [field.name])} leaves it out"
                )
        kinds[field.name] = what
    if left_out:
        read.notes.append(f"columns that are left out: {'; '.join(left_out)}")
    return kinds


def number_column(
    read: LabelledTables, name: str, form: CsvForm, *, gaps: bool
) -> tuple[Numbers, Numbers | None]:
    """A column of finite numbers, of training and test rows.

    Args:
        form: how CSV files are written, for what is said of texts.
        gaps: numbers may be missing.
    Raises: DataError naming the first row that is no number.
    """
    every = list[Numbers]()
    for file, table in zip(read.files, read.tables, strict=True):
        present(file, table, name, "data.numeric")
        where = f"the column {shown(name)}"
        what = meaning(table.schema.field(name))
        if what not in (*NUMBERS, "true and false", NOTHING):
            if what == "texts":
                refuse_stray_text(file, table, name, form, numbers=bool(every))
            raise DataError(
                f"{file}: {where} holds {what}, expected numbers; data.numeric names those that are used"
            )
        column = column_of(file, table, name) if what == "lists of numbers" else table.column(name)
        try:
            numbers = numbers_of(column)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"{file}: {where} has {shortened(str(error), 300)}") from None
        _check_finite(file, where, numbers, gaps=gaps)
        if numbers.scale != (every or [numbers])[0].scale and what != NOTHING:
            raise DataError(f"{file}: {where} has {numbers.scale}, in {read.files[0]} {every[0].scale}")
        if every and numbers.values.shape[1] != every[0].values.shape[1]:
            raise DataError(f"{file}: {where} has lists of another length than in {read.files[0]}")
        every.append(numbers)
    return read.parts(every)


def _check_finite(file: Path, where: str, numbers: Numbers, *, gaps: bool) -> None:
    if numbers.missing.any() and not gaps:
        row, count = int(np.argmax(numbers.missing.any(axis=1))), int(numbers.missing.any(axis=1).sum())
        raise DataError(f"{file}, row {row + 1}: no value in {where}; {count} have none. {FILLED}")
    wrong = ~np.isfinite(numbers.values)
    if wrong.any():
        row, place = (int(index) for index in np.argwhere(wrong)[0])
        value = numbers.values[row, place]
        raise DataError(f"{file}, row {row + 1}: {value} in {where}; expected finite numbers")


def refuse_stray_text(
    file: Path, table: pa.Table, name: str, form: CsvForm, more: str = "", *, numbers: bool = False
) -> None:
    """Raises: DataError for a text in a column that otherwise holds numbers or times.

    Args:
        more: another way out, for the message.
        numbers: as `stray_text` takes it.
    """
    if stray := stray_text(table.column(name), form, numbers=numbers):
        row, text, kind, cure = stray
        cure = f"expected a file that has them as {kind}s" if is_parquet(file) else cure
        raise DataError(
            f"{file}, row {row + 1}: {shown(text)} in the column {shown(name)}, which otherwise holds "
            f"{kind}s; {cure}{more}"
        )


class Rows:
    """Rows of labelled tables, made into samples.

    Args:
        read: the rows.
        form: how CSV files are written.
        gaps: numbers may be missing.
    """

    def __init__(self, read: LabelledTables, form: CsvForm, gaps: bool = False) -> None:
        self._read, self._form, self._gaps = read, form, gaps

    def numbers(self, names: Sequence[str]) -> Parts:
        """Columns of numbers side by side, of training and test rows, [n, width] float32, standardised."""
        columns, constant, huge, ids = list[Parts](), list[str](), list[str](), list[str]()
        for name in names:
            train, test = number_column(self._read, name, self._form, gaps=self._gaps)
            parts, same = standardised(train, test)
            constant += [name] * bool(same.all())
            ids += [name] * counts_rows(self._read.tables[0].column(name), MANY_CATEGORIES)
            huge += [name] * bool(train.values.dtype.kind == "f" and np.abs(train.values).max() > 2**53)
            for part in parts:
                if part is not None and not np.isfinite(part).all():
                    raise DataError(
                        f"{self._read.files[0]}: the column {shown(name)} has numbers that are too large"
                    )
            columns.append(parts)
        self._note("numbers above 2^53, of which 64 bits keep 16 digits", huge)
        self._note("one value in all training rows, and became 0", constant)
        self._note("another whole number in every row, as ids have; data.leave_out leaves such out", ids)
        # Without any column the rows are still as many.
        none = self._read.parts([np.zeros((len(labels), 0), np.float32) for labels in self._read.labels])
        return _side_by_side([none, *columns])

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
                f"{setting('data.leave_out', [name])} leaves it out",
                [name],
            )
        other = next((value for value in known if not is_time(str(value))), None)
        if other and all(DATE.fullmatch(str(value)) for value in known):
            self._note(f"dates as {other}, read as categories; 2021-04-30 is read as a time", [name])
        elif other and all(AMOUNT.fullmatch(str(value)) for value in known):
            self._note(f"amounts as {other}, read as categories; 5 and 20000 are read as numbers", [name])
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
        # A partition may go by categories, not by numbers.
        return read.dataset(_side_by_side(columns), [label_column, *numeric], client_column, sample)


def _side_by_side(columns: Sequence[Parts]) -> Parts:
    """Columns of training rows, and of test rows if there are any, [n, width] each."""
    tests = [column[1] for column in columns if column[1] is not None]
    train = np.concatenate([column[0] for column in columns], axis=1)
    return train, np.concatenate(tests, axis=1) if tests else None


def _one_hot(parts: Parts, count: int) -> Parts:
    """[n, count - 1]: the unseen category is all zeros."""

    def spread(codes: Array) -> Array:
        return np.asarray(codes == np.arange(1, count), np.float32)

    return spread(parts[0]), None if parts[1] is None else spread(parts[1])
