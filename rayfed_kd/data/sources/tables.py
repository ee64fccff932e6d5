"""Tables of a user's own, CSV or Parquet: columns of numbers, classes and clients, and all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from rayfed_kd.data.dataset import MOST_CLASSES, Array, RawDataset, Split
from rayfed_kd.data.sources.own_images import held_out_rows
from rayfed_kd.errors import DataError, nearest, shortened, shown
from rayfed_kd.recipe.sample_shapes import Shape

# Of a column that a partition may go by: beyond it a column tells samples apart rather than groups them.
MOST_VALUES = 10_000


@dataclass(frozen=True)
class LabelledTables:
    """The rows of one file, or of a training and a test file, with their classes.

    Attributes:
        files, tables: one or two of each; the first has the training samples.
        labels: [n] int64 of each file, places in `class_names`.
        class_names: of the training file's classes, ascending.
        test_rows: [n] bool, the rows of a single file that are set apart as the official test set; None where
            there is a test file, or no test set.
    """

    files: Sequence[Path]
    tables: Sequence[pa.Table]
    labels: Sequence[Array]
    class_names: tuple[str, ...]
    test_rows: Array | None

    def parts(self, values: Sequence[Array]) -> tuple[Array, Array | None]:
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
        others = (name for name in dict.fromkeys(table.column_names) if name not in used)
        grouped = {name: values for name in others if (values := group_codes(table, name)) is not None}
        writers = None if client_column is None else client_codes(file, table, client_column)
        return RawDataset(
            Split(samples[0], labels[0]),
            test,
            self.class_names,
            writers=None if writers is None else self.parts([writers])[0],
            columns={name: self.parts([values])[0] for name, values in grouped.items()},
            sample=sample,
        )


def read_labelled(
    files: Sequence[Path],
    separator: str,
    label: str,
    others: Sequence[str],
    test: tuple[float, int],
    texts: Sequence[str] = (),
) -> LabelledTables:
    """Read a training file and perhaps a test file, and number their classes.

    Args:
        files: one or two.
        separator: between the columns of a CSV file.
        label: the column of classes.
        others: columns of clients, which must be there.
        test: share of each class that is set apart where there is no test file, and the draw's seed.
        texts: columns that are texts whatever they look like.
    Raises: DataError if a file cannot be read or lacks a column; if a class is in the test file alone.
    """
    tables = [read_table(file, separator, label, others, texts) for file in files]
    labels = [class_values(file, table, label) for file, table in zip(files, tables, strict=True)]
    names = sorted(set(labels[0].tolist()))
    if beyond := sorted({one for own in labels[1:] for one in own.tolist()} - set(names)):
        raise DataError(f"{files[1]}: the class {shown(beyond[0])} is not in {files[0]}")
    codes = [np.searchsorted(np.array(names), own).astype(np.int64) for own in labels]
    test_rows = held_out_rows(codes[0], *test) if len(files) == 1 else None
    return LabelledTables(files, tables, codes, tuple(map(str, names)), test_rows)


def read_table(
    file: Path, separator: str, label: str, clients: Sequence[str], texts: Sequence[str] = ()
) -> pa.Table:
    """A CSV or Parquet file that has rows, classes and the columns of clients."""
    table = parsed(file, separator, texts)
    for name, option in [(label, "data.label_column"), *((name, "data.client_column") for name in clients)]:
        column_of(file, table, name, option)
    if table.num_rows == 0:
        raise DataError(f"{file}: no rows below the names of columns")
    return table


def parsed(file: Path, separator: str, texts: Sequence[str] = ()) -> pa.Table:
    """A CSV or Parquet file as it is; Parquet is what is called *.parquet.

    Raises: DataError if it cannot be read.
    """
    kind = "Parquet" if file.suffix == ".parquet" else "CSV"
    try:
        if kind == "Parquet":
            return pq.read_table(file)
        options = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        types = arrow_csv.ConvertOptions(column_types={name: pa.string() for name in texts})
        return arrow_csv.read_csv(file, parse_options=options, convert_options=types)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not readable as {kind} ({shortened(str(error), 300)})") from None


def column_of(file: Path, table: pa.Table, name: str, option: str, cure: str = "") -> pa.ChunkedArray:
    """A column without gaps.

    Args:
        option: the recipe's key that names such columns.
        cure: what to do about a gap, for the message.
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
            f"{f'. {cure}' if cure else ''}"
        )
    return column


def number_column(
    file: Path,
    table: pa.Table,
    name: str,
    option: str = "data.columns",
    *,
    gaps: bool = False,
    cure: str = "",
) -> Array:
    """A column of finite numbers, [n] float32.

    Args:
        option, cure: as `column_of` takes them.
        gaps: rows without a value are NaN, rather than refused.
    Raises: DataError naming the first row that is no number.
    """
    given = table.column(name) if gaps and table.column_names.count(name) == 1 else None
    column = column_of(file, table, name, option, cure) if given is None else given
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(
            f"{file}: the column {shown(name)} is {column.type}, expected numbers; {option} names those that "
            "are used"
        )
    values: Array = column.to_numpy().astype(np.float32)
    wrong = ~np.isfinite(values)
    if gaps:
        wrong &= ~column.is_null().to_numpy()
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{file}, row {row + 1}: {values[row]} in the column {shown(name)}; expected finite numbers"
        )
    return values


def class_values(file: Path, table: pa.Table, name: str) -> Array:
    """The column of classes, [n]: texts or whole numbers."""
    column = column_of(file, table, name, "data.label_column")
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


def client_codes(file: Path, table: pa.Table, name: str) -> Array:
    """The column of clients as [n] int64, a number for each."""
    values = np.array(list(map(str, column_of(file, table, name, "data.client_column").to_pylist())))
    codes: Array = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return codes


def group_codes(table: pa.Table, name: str) -> Array | None:
    """A column that a partition may go by, [n] int64, a number for each value; None if it is none.

    Texts, whole numbers and booleans without gaps, of no more than MOST_VALUES values, are such columns.
    """
    if table.column_names.count(name) != 1:
        return None
    column = table.column(name)
    kind = column.type
    if column.null_count or not (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return None
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):  # as `combine_chunks` gives them for no rows
        return None
    if len(encoded.dictionary) > MOST_VALUES:
        return None
    # Codes in the order of the values, not of the rows: the same after rows have changed places.
    order = np.argsort(np.array(encoded.dictionary.to_pylist()), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    codes: Array = ranks[encoded.indices.to_numpy()]
    return codes
