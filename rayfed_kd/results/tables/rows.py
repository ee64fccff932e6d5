"""Rows of a round as Arrow has them, checked against the table's columns."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any

import pyarrow as pa

from rayfed_kd.results.schemas import ROW_ORDER, SCHEMAS, check_table_name


def arrow_rows(name: str, round_index: int, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """A round's rows of one table, in the order that readers find them.

    Args:
        name: the table.
        round_index: the round, from 1.
        rows: with the columns of `SCHEMAS`; a column that a row lacks is null.

    Raises:
        RecipeError: there is no such table.
        KeyError: there is no such column.
        TypeError: a value has a wrong type.
        ValueError: a row is of another round.
    """
    check_table_name(name)
    schema = SCHEMAS[name]
    unknown = {key for row in rows for key in row} - set(schema.names)
    if unknown:
        raise KeyError(
            f"table {name} has no column {', '.join(sorted(unknown))}; it has {', '.join(schema.names)}"
        )
    if order := ROW_ORDER[name]:
        rows = sorted(rows, key=itemgetter(*order))
    arrays = [_array(name, field, [row.get(field.name) for row in rows]) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for said in batch["round"].to_pylist():
        if said != round_index:
            raise ValueError(f"table {name}: rows of round {said} written as round {round_index}")
    return batch


def _array(name: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """A column's values in Arrow. A fraction is refused in a column of integers: Arrow would cut it off."""
    if field.type == pa.int64():
        wrong = [v for v in values if type(v) is not int and not isinstance(v, numbers.Integral | NoneType)]
        if wrong:
            raise TypeError(f"table {name}, column {field.name}: {wrong[0]!r} is not {field.type}")
    if pa.types.is_map(field.type):
        # Arrow takes a map as a list of pairs.
        values = [None if value is None else list(value.items()) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeError(f"table {name}, column {field.name}: {error}; expected {field.type}") from error
