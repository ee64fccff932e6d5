"""Writes a run's tables, a part for each round."""

from __future__ import annotations

import numbers
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from rayfed_kd.files import flush_to_disk, read_parquet, written_aside
from rayfed_kd.results.schemas import ROW_ORDER, SCHEMAS, check_table_name
from rayfed_kd.results.tables.parts import Part, covering, parts_in, tidy
from rayfed_kd.results.tables.reading import rows_by_round

MERGE_AT = 64  # parts; a folder of thousands of small files is slow to read, above all over a network


class TableWriter:
    """Writes a run's tables below `folder`, one folder a table. One writer at a time.

    Args:
        folder: made if it is not there; unfinished files of a killed writer are removed.
        after_round: the last round whose rows stay, as a resumed run needs; None: all stay.
    """

    def __init__(self, folder: Path, after_round: int | None = None) -> None:
        self._folder = folder
        self._unflushed: deque[Path] = deque()  # its ends may be used by two threads
        for name in SCHEMAS:
            (folder / name).mkdir(parents=True, exist_ok=True)
            tidy(folder / name)
        if after_round is not None:
            self._drop(after_round)
        self._look()

    def _look(self) -> None:
        """Keep what is there: to list the folders for each round takes as long as to write its parts."""
        self._rows = {name: rows_by_round(self._folder, name) for name in SCHEMAS}
        self._parts = {name: covering(self._folder / name) for name in SCHEMAS}

    def row_counts(self, until_round: int) -> dict[str, int]:
        """Table -> how many rows it has of rounds up to this one."""
        return {
            name: sum(count for index, count in by_round.items() if index <= until_round)
            for name, by_round in self._rows.items()
        }

    def write(self, round_index: int, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Write a round's rows, one part per table. A part of the same round is replaced.

        Args:
            round_index: the round, from 1.
            tables: table -> rows with the columns of `SCHEMAS`; a column that a row lacks is null.

        Raises:
            RecipeError: there is no such table.
            KeyError: there is no such column.
            TypeError: a value has a wrong type.
            ValueError: a row is of another round, or the round lies in a merged part already: `truncate`
                comes first.
        """
        for name, rows in tables.items():
            table = _arrow(name, round_index, rows)
            if rows:
                self._refuse_covered(name, round_index)
                path = _write_part(self._folder / name, round_index, round_index, table, flush=False)
                self._unflushed.append(path)
                if round_index not in self._rows[name]:
                    self._parts[name].append(Part(path, round_index, round_index))
                self._rows[name][round_index] = len(rows)
                self._merge_when_many(name)

    def sync(self) -> None:
        """Bring all parts so far to disk: from then on a power cut, too, leaves them whole. From any thread.

        Raises:
            OSError: the disk does not take one; the next call tries it again.
        """
        paths = list[Path]()
        with suppress(IndexError):
            while True:
                paths.append(self._unflushed.popleft())
        try:
            flush_to_disk(paths)
        except OSError:
            self._unflushed.extend(paths)
            raise

    def truncate(self, after_round: int) -> None:
        """Drop all rows of later rounds. After a kill in the middle, call it again.

        Args:
            after_round: the last round that stays.
        """
        self._drop(after_round)
        self._look()

    def _drop(self, after_round: int) -> None:
        for name in SCHEMAS:
            # First, because a covered part would count again once the part that covers it is gone.
            tidy(self._folder / name)
            for part in parts_in(self._folder / name):
                if part.last > after_round:
                    _cut(part, after_round)

    def close(self) -> None:
        """Merge all parts of each table into one, and bring them to disk."""
        for name in SCHEMAS:
            self._merge(name, self._parts[name])
        self.sync()  # where a table has one part, of one round

    def _refuse_covered(self, name: str, round_index: int) -> None:
        for part in self._parts[name]:
            if part.first <= round_index <= part.last and part.first != part.last:
                raise ValueError(
                    f"table {name}: round {round_index} is in {part.path.name} already; "
                    f"truncate({round_index - 1}) comes before writing it again"
                )

    def _merge_when_many(self, name: str) -> None:
        # Merged parts are left alone until `close`: a long run would rewrite all its rows each time.
        single = [part for part in self._parts[name] if part.first == part.last]
        if len(single) >= MERGE_AT:
            self._merge(name, single)

    def _merge(self, name: str, parts: Sequence[Part]) -> None:
        if len(parts) > 1:
            # Written before the small parts go: a kill in between leaves rows twice on disk, never none.
            whole = [read_parquet(part.path) for part in parts]
            merged = pa.concat_tables(whole, promote_options="default")  # see `_read_parts`
            _write_part(self._folder / name, parts[0].first, parts[-1].last, merged)
        tidy(self._folder / name)
        self._parts[name] = covering(self._folder / name)


def _arrow(name: str, round_index: int, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    check_table_name(name)
    schema = SCHEMAS[name]
    unknown = {key for row in rows for key in row} - set(schema.names)
    if unknown:
        raise KeyError(
            f"table {name} has no column {', '.join(sorted(unknown))}; it has {', '.join(schema.names)}"
        )
    arrays = [_array(name, field, [row.get(field.name) for row in rows]) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    others = set(table["round"].to_pylist()) - {round_index}
    if others:
        listed = ", ".join(map(str, sorted(others)))
        raise ValueError(f"table {name}: rows of round {listed} written as round {round_index}")
    return table.sort_by([(key, "ascending") for key in ROW_ORDER[name]]) if ROW_ORDER[name] else table


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


def _cut(part: Part, after_round: int) -> None:
    """Keep a part's rows up to a round. The shorter part is written before the longer one is removed."""
    if part.first <= after_round:
        table = read_parquet(part.path)
        shorter = table.filter(pa.compute.less_equal(table["round"], after_round))
        # It lies within the longer part: readers leave it out until that one is gone.
        _write_part(part.path.parent, part.first, after_round, shorter)
    part.path.unlink()


def _write_part(folder: Path, first: int, last: int, table: pa.Table, *, flush: bool = True) -> Path:
    path = folder / f"part-{first:08d}-{last:08d}.parquet"
    with written_aside(path, flush=flush) as aside:
        pq.write_table(table, aside)
    return path
