"""Rows of rounds as Arrow has them, checked against the table's columns."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rayfed_kd.results.schemas import ROW_ORDER, SCHEMAS, check_table_name


def arrow_rows(name: str, rounds: Mapping[int, Sequence[Mapping[str, Any]]]) -> pa.Table:
    """Some rounds' rows of one table, in the order that readers find them.

    All at once, as each column that Arrow makes takes as long as many of its values.

    Args:
        name: the table.
        rounds: the round, from 1 -> rows with the columns of `SCHEMAS`; a column that a row lacks is null.

    Raises:
        RecipeError: there is no such table.
        KeyError: there is no such column.
        TypeError: a value has a wrong type.
        ValueError: a row is of another round.
    """
    check_table_name(name)
    schema, indices = SCHEMAS[name], sorted(rounds)
    rows = [row for index in indices for row in rounds[index]]
    unknown = {key for row in rows for key in row} - set(schema.names)
    if unknown:
        raise KeyError(
            f"table {name} has no column {', '.join(sorted(unknown))}; it has {', '.join(schema.names)}"
        )
    arrays = [_array(name, field, [row.get(field.name) for row in rows]) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    meant = [index for index in indices for _ in rounds[index]]
    for said, index in zip(table["round"].to_pylist(), meant, strict=True):
        if said != index:
            raise ValueError(f"table {name}: rows of round {said} written as round {index}")
    keys = ("round", *ROW_ORDER[name])
    return table.sort_by([(key, "ascending") for key in keys]) if ROW_ORDER[name] else table


def _array(name: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """A column's values in Arrow. A fraction is refused in a column of integers: Arrow would cut it off."""
    if field.type == pa.int64():
        wrong = [v for v in values if v is not None and not isinstance(v, numbers.Integral)]
        if wrong:
            raise TypeError(f"table {name}, column {field.name}: {wrong[0]!r} is not {field.type}")
    if pa.types.is_map(field.type):
        # Arrow takes a map as a list of pairs.
        values = [None if value is None else list(value.items()) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TypeError(f"table {name}, column {field.name}: {error}; expected {field.type}") from error
