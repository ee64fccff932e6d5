"""Writes a run's tables: a stream each while the run goes on, a Parquet file each at its end."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa

from rayfed_kd.files.whole import flush_folder, make_folder, remove_unfinished, write_parquet
from rayfed_kd.results.schemas import ROW_ORDER, SCHEMAS
from rayfed_kd.results.tables.reading import PARQUET, table_rows
from rayfed_kd.results.tables.streams import STREAM, Stream

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


class TableWriter:
    """Writes a run's tables below `folder`, one folder a table. One writer at a time.

    Args:
        folder: made if it is not there; unfinished files of a killed writer are removed.
        after_round: the last round whose rows stay, as a resumed run needs; None: all stay.
    """

    def __init__(self, folder: Path, after_round: int | None = None) -> None:
        self._folder = folder
        self._streams: dict[str, Stream] = {}
        self._rows = {name: Counter[int]() for name in SCHEMAS}  # table -> round -> how many
        for name in SCHEMAS:
            make_folder(folder / name)
            remove_unfinished(folder / name)
            self._go_on(name, after_round)

    def _go_on(self, name: str, after_round: int | None) -> None:
        """Make a table's rows up to a round its stream. After a kill in the middle, it is done again."""
        written = table_rows(self._folder / name, name, until_round=after_round)
        # A table of an earlier version may lack a column.
        table = pa.concat_tables([SCHEMAS[name].empty_table(), written], promote_options="default")
        rows = self._rows[name] = Counter(table["round"].to_pylist())
        if rows:
            ends = accumulate(rows.values())
            parts = (table.slice(end - rows[r], rows[r]) for r, end in zip(rows, ends, strict=True))
            self._open(name, [batch for part in parts for batch in part.combine_chunks().to_batches()])
        else:
            (self._folder / name / STREAM).unlink(missing_ok=True)
        # Not before the stream, which counts where both are there.
        for path in (self._folder / name).glob("*.parquet"):
            path.unlink()

    def _open(self, name: str, begin: Sequence[Any] = ()) -> Stream:
        stream = self._streams[name] = Stream(self._folder / name / STREAM, SCHEMAS[name], begin)
        return stream

    def row_counts(self, until_round: int) -> dict[str, int]:
        """Table -> how many rows it has of rounds up to this one."""
        return {
            name: sum(count for index, count in by_round.items() if index <= until_round)
            for name, by_round in self._rows.items()
        }

    def write(self, round_index: int, tables: Tables) -> None:
        """Write a round's rows, so that `read_table` finds them.

        Args:
            round_index: the round, from 1.
            tables: table -> rows with the columns of `SCHEMAS`; a column that a row lacks is null.

        Raises:
            KeyError, TypeError, ValueError: as `arrow_rows` does; nothing is written then.
            ValueError: a table has rows of this round or a later one.
            OSError: the disk does not take them.
        """
        batches = {name: arrow_rows(name, round_index, rows) for name, rows in tables.items()}
        for name in batches:
            last = next(reversed(self._rows[name]), 0)
            if round_index <= last:
                raise ValueError(f"table {name} has round {last} already; expected a later one")
        for name, batch in batches.items():
            if batch.num_rows:
                stream = self._streams.get(name) or self._open(name)
                stream.append(batch)
                self._rows[name][round_index] = batch.num_rows

    def sync(self) -> None:
        """Bring all rows so far to disk: from then on a power cut, too, leaves them whole. From any thread.

        Raises:
            OSError: the disk does not take them; the next call tries it again.
        """
        for stream in list(self._streams.values()):
            stream.sync()

    def close(self) -> None:
        """Make each table's stream one Parquet file, on disk.

        Raises:
            OSError: the disk does not take one; the stream stays.
        """
        # First: of stream and file the stream counts, if a power cut leaves both.
        self.sync()
        for name, stream in list(self._streams.items()):
            write_parquet(self._folder / name / PARQUET, table_rows(self._folder / name, name))
            stream.close()
            del self._streams[name]
            (self._folder / name / STREAM).unlink()
            flush_folder(self._folder / name)  # else it may come back, and stay


def arrow_rows(name: str, round_index: int, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """A round's rows of one table, in the order that readers find them.

    Args:
        name: the table.
        round_index: the round, from 1.
        rows: with the columns of `SCHEMAS`; a column that a row lacks is null.

    Raises:
        KeyError: there is no such table or column.
        TypeError: a value has a wrong type.
        ValueError: a row is of another round.
    """
    schema = SCHEMAS[name]
    unknown = {key for row in rows for key in row} - set(schema.names)
    if unknown:
        raise KeyError(
            f"table {name} has no column {', '.join(sorted(unknown))}; it has {', '.join(schema.names)}"
        )
    if order := ROW_ORDER.get(name):
        rows = sorted(rows, key=itemgetter(*order))
    arrays = [_array(name, field, [row.get(field.name) for row in rows]) for field in schema]
    if other := next((row for row in rows if row.get("round") != round_index), None):
        raise ValueError(f"table {name}: rows of round {other.get('round')} written as round {round_index}")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
