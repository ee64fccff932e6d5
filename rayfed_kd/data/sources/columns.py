"""Columns of Arrow tables as what they mean, whichever library wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayfed_kd.data.dataset import Array
from rayfed_kd.data.sources.classes import by_value, in_order

NUMBERS = ("numbers", "times", "lists of numbers")
CATEGORIES = ("texts", "categories", "true and false")
NOTHING = "no values"
# In a field's metadata: the file has the column as categories, as pandas and polars write categoricals.
CATEGORY = {b"rayfed_kd": b"category"}
# How much rounding may move the numbers of a column of one value, over the largest of them.
ROUNDING = 16 * np.finfo(np.float64).eps
Parts = tuple[Array, Array | None]


def plain_table(table: pa.Table, written: pa.Schema | None = None) -> pa.Table:
    """The same values in fewer types: texts are large_string; no dictionaries, views, extensions or NaN.

    A NaN becomes a missing value: pandas writes missing numbers as null, polars as NaN.

    Args:
        written: the table's schema before it was written: Parquet keeps no dictionaries of numbers.
    """
    fields, columns = list[pa.Field](), list[pa.ChunkedArray]()
    for field, first, column in zip(table.schema, written or table.schema, table.columns, strict=True):
        columns.append(_plain(column))
        dictionary = pa.types.is_dictionary(field.type) or pa.types.is_dictionary(first.type)
        category = CATEGORY if dictionary else None
        fields.append(pa.field(field.name, columns[-1].type, metadata=category))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type))
    if pa.types.is_dictionary(kind):
        decoded = [chunk.dictionary_decode() for chunk in column.chunks]
        return _plain(pa.chunked_array(decoded, kind.value_type))
    if str(kind) in ("string", "string_view"):  # older Arrow has no name for the second
        return column.cast(pa.large_string())
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        return pc.if_else(pc.is_nan(wide), pa.scalar(None, wide.type), wide)
    return column


def meaning(field: pa.Field) -> str:
    """What a column of a plain table holds: one of NUMBERS, CATEGORIES, NOTHING, or its type's name."""
    kind, category = field.type, bool(field.metadata and CATEGORY.items() <= field.metadata.items())
    answers = {
        "categories": category,
        "numbers": _is_number(kind),
        "times": pa.types.is_temporal(kind) and not pa.types.is_interval(kind),
        "texts": pa.types.is_large_string(kind),
        "true and false": pa.types.is_boolean(kind),
        NOTHING: pa.types.is_null(kind),
        "lists of numbers": _is_list(kind) and _is_number(kind.value_type),
    }
    return next((name for name, holds in answers.items() if holds), str(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


@dataclass(frozen=True)
class Numbers:
    """The numbers of a column, exactly.

    Attributes:
        values: [n, width] int64, uint64 or float64; 0 where one is missing.
        missing: [n, width] bool.
        scale: what they count, as `numbers` or `times of a day`: the same in both files.
    """

    values: Array
    missing: Array
    scale: str

    def __getitem__(self, rows: Array) -> Numbers:
        """Those of some rows, [n] bool."""
        return Numbers(self.values[rows], self.missing[rows], self.scale)


def numbers_of(column: pa.ChunkedArray) -> Numbers:
    """Numbers, times in micro- or nanoseconds, lists of numbers of one length, or true and false as 1 and 0.

    Raises: ValueError for lists of several lengths and for times that 64 bits cannot hold.
    """
    width, scale = 1, "numbers"
    if _is_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) != 1 or not lengths[0]:
            counts = ", ".join(str(length or "no") for length in lengths[:4])
            raise ValueError(f"lists of {counts} numbers; expected one length")
        width = lengths[0]
        column = _plain(pc.list_flatten(column))
    if pa.types.is_temporal(column.type):
        column, scale = _whole_units(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.float64())
    missing = column.is_null().to_numpy()
    values = pc.fill_null(column, 0).to_numpy()
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    elif values.dtype != np.uint64 or not len(values) or values.max() < 2**63:
        values = values.astype(np.int64)
    return Numbers(values.reshape(-1, width), missing.reshape(-1, width), scale)


def _whole_units(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str]:
    """Timestamps in microseconds, as days are far apart; times of a day and durations in nanoseconds."""
    kind = column.type
    zone = getattr(kind, "tz", None)
    if pa.types.is_time(kind):
        wanted, scale = pa.time64("ns"), "times of a day"
    elif pa.types.is_duration(kind):
        wanted, scale = pa.duration("ns"), "durations"
    else:
        wanted = pa.timestamp("us", zone)
        scale = "times with a time zone" if zone else "times without a time zone"
    finer = getattr(kind, "unit", "s") == "ns"  # of a timestamp parts of a microsecond are cut
    return pc.cast(column, wanted, safe=not finer).cast(pa.int64()), scale


def standardised(train: Numbers, test: Numbers | None) -> tuple[Parts, Array]:
    """Less the training rows' mean, over their deviation: in float64, and exactly for whole numbers.

    What is missing becomes the mean, 0. A column of one value becomes 0, in test rows as well.

    Returns: training and test rows, [n, width] float32; and which columns have one value, [width] bool.
    """
    start = _start(train)
    values, present = _above(train, start), ~train.missing
    # Over the largest, so that squares of very large numbers are finite.
    largest = np.where(present, np.abs(values), 0).max(axis=0, initial=0)
    largest[largest == 0] = 1
    counts = np.maximum(present.sum(axis=0), 1)
    shares = np.where(present, values / largest, 0)
    mean = shares.sum(axis=0) / counts
    deviation = np.sqrt((np.where(present, shares - mean, 0) ** 2).sum(axis=0) / counts)
    constant = deviation <= (0 if train.values.dtype.kind in "iu" else ROUNDING)
    divisor = np.where(constant, np.inf, deviation)

    def scaled(part: Numbers) -> Array:
        result = (_above(part, start) / largest - mean) / divisor
        return np.asarray(np.where(part.missing, 0, result).astype(np.float32))

    with np.errstate(over="ignore"):  # infinite results are refused by who reads the file
        return (scaled(train), None if test is None else scaled(test)), constant


def _start(train: Numbers) -> Any:
    """A whole number to count from, so that large ones keep their differences; 0 for other numbers."""
    values = train.values[~train.missing]
    return values[0] if len(values) and values.dtype.kind in "iu" else train.values.dtype.type(0)


def _above(part: Numbers, start: Any) -> Array:
    """The numbers less `start`, float64; of whole numbers the exact difference, rounded once."""
    if part.values.dtype != start.dtype or part.values.dtype.kind == "f":
        return np.asarray(part.values.astype(np.float64) - float(start))
    # Differences modulo 2^64: those of numbers from both ends of int64 do not fit into it.
    values, base = part.values.astype(np.uint64), start.astype(np.uint64)
    exact: Array = np.where(
        part.values >= start, (values - base).astype(np.float64), -(base - values).astype(np.float64)
    )
    return exact


def distinct_values(column: pa.ChunkedArray) -> tuple[list[Any], Array]:
    """What values a column has, and each row's place among them, [n]; a missing value is ""."""
    encoded = pa.concat_arrays([pa.array([], column.type), *column.chunks]).dictionary_encode()
    return [*encoded.dictionary.to_pylist(), ""], encoded.indices.fill_null(
        len(encoded.dictionary)
    ).to_numpy()


def numbers_by_category(column: pa.ChunkedArray, rows: Array | None = None) -> dict[Any, int]:
    """Number the categories of a column, ascending from 0.

    Args:
        rows: [n] bool, the rows that count, as those that train; None: all.
    Returns: category -> number, for categories as `by_value` gives them.
    """
    values, places = distinct_values(column)
    used = np.unique(places if rows is None else places[rows])
    ordered = sorted({by_value(values[place]) for place in used}, key=in_order)
    return {value: code for code, value in enumerate(ordered)}


def codes_in(column: pa.ChunkedArray, numbers: dict[Any, int], unknown: int) -> Array:
    """Each row's category by number, [n] int64; `unknown` for a category that has none."""
    values, places = distinct_values(column)
    return np.asarray(np.array([numbers.get(by_value(value), unknown) for value in values], np.int64)[places])
