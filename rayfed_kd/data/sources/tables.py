"""Tables of a user's own, CSV or Parquet: columns of numbers, classes and clients, and all others."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayfed_kd.data.dataset import Array, RawDataset, Split
from rayfed_kd.data.sources.classes import PLAIN_NUMBER, Labels, gap_notes, number_classes
from rayfed_kd.data.sources.columns import (
    CATEGORIES,
    Numbers,
    codes_in,
    distinct_values,
    meaning,
    numbers_by_category,
    plain_table,
)
from rayfed_kd.data.sources.csv_files import CsvForm, read_csv
from rayfed_kd.data.sources.own_images import held_out_rows
from rayfed_kd.errors import DataError, did_you_mean, shortened, shown
from rayfed_kd.recipe.sample_shapes import Shape

# Of a column that a partition may go by: beyond it a column tells samples apart rather than groups them.
MOST_VALUES = 10_000
# pandas' names of a table's index that has no name: in Parquet, in CSV, and in CSV that was read again.
ROW_NUMBERS = re.compile(r"__index_level_\d+__|(Unnamed: \d+)?")
# As 01, another one than 1, or 1.10, another one than 1.1, or with more digits than a float64 keeps.
CODE = r"^\s*-?(0\d|\d+\.\d*[1-9]0+\s*$|\d{17})"


Known = TypeVar("Known", Array, Numbers)  # of each row


@dataclass(frozen=True)
class LabelledTables:
    """The rows of one file, or of a training and a test file, with their classes.

    Attributes:
        files, tables: one or two of each, as `parsed` gives them; the first has the training samples.
        labels: [n] int64 of each file, places in `class_names`.
        class_names: of the training file's classes, ascending.
        test_rows: [n] bool, the rows of a single file that are set apart as the official test set; None where
            there is a test file, or no test set.
        notes: what the user should know of these files; readers of columns add to it.
    """

    files: Sequence[Path]
    tables: Sequence[pa.Table]
    labels: Sequence[Array]
    class_names: tuple[str, ...]
    test_rows: Array | None
    notes: list[str] = field(default_factory=list)

    def parts(self, values: Sequence[Known]) -> tuple[Known, Known | None]:
        """What is known of each file's rows, divided into training and test samples."""
        if len(values) > 1:
            return values[0], values[1]
        if self.test_rows is None:
            return values[0], None
        return values[0][~self.test_rows], values[0][self.test_rows]

    def dataset(
        self,
        samples: tuple[Array, Array | None],
        used: Sequence[str],
        client_column: str | None,
        sample: Shape | None = None,
    ) -> RawDataset:
        """The data set of these rows.

        Args:
            samples: of training and test rows, as `parts` divides them.
            used: columns that are samples or classes; all others are kept for partitions.
            client_column: whose a row is; None: not known.
            sample: what one sample is, if it is text or a row with categories.
        """
        labels = self.parts(self.labels)
        test = None if samples[1] is None or labels[1] is None else Split(samples[1], labels[1])
        file, table = self.files[0], self.tables[0]
        others = (name for name in table.column_names if name not in used)
        grouped = {name: values for name in others if (values := group_codes(table, name)) is not None}
        writers = None if client_column is None else client_codes(file, table, client_column)
        if client_column is not None:
            self.notes.extend(gap_notes(distinct_values(table.column(client_column))[0][:-1], "client"))
        return RawDataset(
            Split(samples[0], labels[0]),
            test,
            self.class_names,
            writers=None if writers is None else self.parts([writers])[0],
            columns={name: self.parts([values])[0] for name, values in grouped.items()},
            sample=sample,
            notes=tuple(self.notes),
        )


def read_labelled(
    files: Sequence[Path],
    form: CsvForm,
    label: str,
    others: Sequence[str],
    test: tuple[float, int],
    texts: Sequence[str] = (),
) -> LabelledTables:
    """Read a training file and perhaps a test file, and number their classes.

    Args:
        files: one or two.
        form: how CSV files are written.
        label: the column of classes.
        others: columns of clients, which must be there.
        test: share of each class that is set apart where there is no test file, and the draw's seed.
        texts: columns that are texts whatever they look like.
    Raises: DataError if a file cannot be read or lacks a column; if a class is in the test file alone.
    """
    tables = list[pa.Table]()
    for file in files:
        tables.append(read_table(file, form, label, others, texts))
        # What is text in the training file is text in the test file, whatever its few rows look like.
        texts = [field.name for field in tables[0].schema if meaning(field) == "texts"]
    labels = [class_labels(file, table, label) for file, table in zip(files, tables, strict=True)]
    codes, names, notes = number_classes(labels)
    test_rows = held_out_rows(codes[0], *test) if len(files) == 1 else None
    return LabelledTables(files, tables, codes, names, test_rows, notes)


def read_table(
    file: Path, form: CsvForm, label: str, clients: Sequence[str], texts: Sequence[str] = ()
) -> pa.Table:
    """A CSV or Parquet file that has rows, classes and the columns of clients."""
    table = parsed(file, form, texts)
    for name, option in [(label, "data.label_column"), *((name, "data.client_column") for name in clients)]:
        present(file, table, name, option)
    if table.num_rows == 0:
        raise DataError(f"{file}: no rows below the names of columns")
    codes = [name for name in (label, *clients) if meaning(table.schema.field(name)) == "numbers"]
    if codes and not is_parquet(file):
        # Arrow reads 01 as the number 1, and 20 digits as a float; such columns' cells are texts.
        written = parsed(file, form, [*texts, *codes])
        for name in codes:
            if pc.any(pc.match_substring_regex(written[name], CODE)).as_py():
                table = table.set_column(table.column_names.index(name), name, written[name])
    return table


def parsed(file: Path, form: CsvForm, texts: Sequence[str] = ()) -> pa.Table:
    """A CSV or Parquet file as a plain table.

    Args:
        texts: columns of a CSV file that are texts whatever they look like.
    Raises: DataError if it cannot be read, or two columns have one name.
    """
    try:
        kind = "Parquet" if is_parquet(file) else "CSV"
        if kind == "Parquet":
            with pq.ParquetFile(file) as stored:
                table = plain_table(stored.read(), _written_schema(stored))
        else:
            table = plain_table(read_csv(file, form, texts))
        twice = [name for name, count in Counter(table.column_names).items() if count > 1]
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name that is no UTF-8
        raise DataError(f"{file}: not readable as {kind} ({shortened(str(error), 300)})") from None
    if twice:
        raise DataError(f"{file}: two columns have the name {shown(twice[0])}; expected a name for each")
    return table


def is_parquet(file: Path) -> bool:
    """Whether a file is Parquet, by its name or its first bytes; all others are CSV."""
    with file.open("rb") as stream:
        return file.suffix == ".parquet" or stream.read(4) == b"PAR1"


def _written_schema(stored: pq.ParquetFile) -> pa.Schema | None:
    """The schema of the table that Arrow, or pandas through it, wrote to the file; None for other writers."""
    schema = (stored.metadata.metadata or {}).get(b"ARROW:schema")
    return None if schema is None else pa.ipc.read_schema(pa.BufferReader(base64.b64decode(schema)))


def pandas_index(file: Path) -> set[str]:
    """The columns of a Parquet file that were a table's index in pandas."""
    stored = pq.read_schema(file).pandas_metadata if is_parquet(file) else None
    # An index that only counts is no column, but a mapping here.
    return {name for name in (stored or {}).get("index_columns", ()) if isinstance(name, str)}


def present(file: Path, table: pa.Table, name: str, option: str) -> None:
    """Raises: DataError naming the recipe's key `option` if there is no column of this name."""
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names)
        columns = shortened(", ".join(name or "''" for name in table.column_names), 300)
        if any(map(PLAIN_NUMBER.fullmatch, table.column_names)):
            hint = " The first line of a CSV file has the names of its columns."
        raise DataError(
            f"{option} = {shown(name)}: {file} has no column of this name; there are {columns}.{hint}"
        )


def column_of(file: Path, table: pa.Table, name: str) -> pa.ChunkedArray:
    """A column that is there, without gaps.

    Raises: DataError if a row has no value; an empty text is none.
    """
    column = table.column(name)
    blank = pc.is_null(column)
    if pa.types.is_large_string(column.type):
        blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
    if count := pc.sum(blank).as_py():
        row = pc.index(blank, pa.scalar(True)).as_py()
        raise DataError(
            f"{file}, row {row + 1}: no value in the column {shown(name)}; {count} have none. "
            "Expected a table without these rows, or a value for them"
        )
    return column


def class_labels(file: Path, table: pa.Table, name: str) -> Labels:
    """The column of classes: texts, whole numbers, categories, or true and false."""
    what = meaning(table.schema.field(name))
    if what not in (*CATEGORIES, "numbers"):
        raise DataError(f"{file}: the column {shown(name)} holds {what}, expected texts or whole numbers")
    values, places = distinct_values(column_of(file, table, name))
    return Labels(f"{file}, column {shown(name)}", values[:-1], places)


def client_codes(file: Path, table: pa.Table, name: str) -> Array:
    """The column of clients as [n] int64, a number for each."""
    column = column_of(file, table, name)
    return codes_in(column, numbers_by_category(column), -1)


def counts_rows(column: pa.ChunkedArray, least: int = 0) -> bool:
    """Whether a column of more than `least` rows has another whole number in every one."""
    counts = pa.types.is_integer(column.type) and not column.null_count and len(column) > least
    return bool(counts and pc.count_distinct(column).as_py() == len(column))


def group_codes(table: pa.Table, name: str) -> Array | None:
    """A column that a partition may go by, [n] int64, a number for each value; None if it is none.

    Texts, categories and booleans, of which a missing one is a value, and whole numbers without gaps are such
    columns, of no more than MOST_VALUES values. Those that number the rows, as pandas' index does, are none.
    """
    column = table.column(name)
    index = ROW_NUMBERS.fullmatch(name) and counts_rows(column)
    whole = pa.types.is_integer(column.type) and not column.null_count
    grouping = whole or meaning(table.schema.field(name)) in CATEGORIES
    if index or not grouping or pc.count_distinct(column).as_py() > MOST_VALUES:
        return None
    # Codes in the order of the values, not of the rows: the same after rows have changed places.
    return codes_in(column, numbers_by_category(column), -1)
