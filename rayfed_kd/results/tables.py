"""A run's tables as Parquet parts: readable at any moment, also after a kill.

A part holds a range of rounds; it is written aside, flushed to disk and renamed. Sixty-four parts of one
round each are merged into one part that covers them. Until the small ones are gone, readers leave out a part
that lies within another, so a kill in between doubles no row.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from rayfed_kd.errors import DataError
from rayfed_kd.files import read_parquet, remove_unfinished, written_aside
from rayfed_kd.results.schemas import CONFIG, ROW_ORDER, SCHEMAS, TABLES, check_table_name

MERGE_AT = 64  # parts; a folder of thousands of small files is slow to read, above all over a network
READ_ATTEMPTS = 5  # a merge during each of them is not to be expected: merges are 64 rounds apart

_NAME = re.compile(r"part-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class _Part:
    path: Path
    first: int
    last: int

    def within(self, other: _Part) -> bool:
        return other != self and other.first <= self.first and self.last <= other.last


class TableWriter:
    """Writes a run's tables below `folder`, one folder a table. One writer at a time.

    Args:
        folder: made if it is not there; unfinished files of a killed writer are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in SCHEMAS:
            (folder / name).mkdir(parents=True, exist_ok=True)
            _tidy(folder / name)
        self._rows = {name: _rows_by_round(folder, name) for name in SCHEMAS}

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
                _write_part(self._folder / name, round_index, round_index, table)
                self._rows[name][round_index] = len(rows)
                self._merge_when_many(name)

    def truncate(self, after_round: int) -> None:
        """Drop all rows of later rounds, as a resumed run needs. After a kill in the middle, call it again.

        Args:
            after_round: the last round that stays.
        """
        for name in SCHEMAS:
            # First, because a covered part would count again once the part that covers it is gone.
            _tidy(self._folder / name)
            for part in _parts(self._folder / name):
                if part.last > after_round:
                    _cut(part, after_round)
            self._rows[name] = _rows_by_round(self._folder, name)

    def close(self) -> None:
        """Merge all parts of each table into one."""
        for name in SCHEMAS:
            self._merge(name, _covering(self._folder / name))

    def _refuse_covered(self, name: str, round_index: int) -> None:
        for part in _parts(self._folder / name):
            if part.first <= round_index <= part.last and part.first != part.last:
                raise ValueError(
                    f"table {name}: round {round_index} is in {part.path.name} already; "
                    f"truncate({round_index - 1}) comes before writing it again"
                )

    def _merge_when_many(self, name: str) -> None:
        # Merged parts are left alone until `close`: a long run would rewrite all its rows each time.
        single = [part for part in _covering(self._folder / name) if part.first == part.last]
        if len(single) >= MERGE_AT:
            self._merge(name, single)

    def _merge(self, name: str, parts: Sequence[_Part]) -> None:
        if len(parts) > 1:
            # Written before the small parts go: a kill in between leaves rows twice on disk, never none.
            whole = [read_parquet(part.path) for part in parts]
            merged = pa.concat_tables(whole, promote_options="default")  # see `_read_parts`
            _write_part(self._folder / name, parts[0].first, parts[-1].last, merged)
        _tidy(self._folder / name)


def read_table(folder: str | Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table's rows so far; it may be called while a run writes.

    Args:
        folder: the run's folder, as runs/NAME, or its folder of tables, as runs/NAME/tables.
        name: rounds, metrics, clients, scores, messages, privacy or hosts.
        columns: those that are wanted; None: all.

    Returns: rows by round, and within a round by client, model and so on; no row if the run has none yet.

    Raises:
        RecipeError: there is no such table.
        DataError: the folder is no run's, or a part is damaged.
    """
    check_table_name(name)
    return _read_rows(_folder_of_tables(Path(folder).expanduser(), name), name, columns)


def _folder_of_tables(folder: Path, name: str) -> Path:
    """Where a run's tables lie.

    Raises: DataError if the folder is neither a run's nor its folder of tables.
    """
    for tables in (folder, folder / TABLES):
        # A run that was killed before its first round may have no tables. Its recipe is there.
        if (tables / name).is_dir() or (tables.name == TABLES and (tables.parent / CONFIG).is_file()):
            return tables
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected a run's folder, as runs/NAME")
    raise DataError(
        f"{folder} holds no table {name}: expected a run's folder, as runs/NAME, or its folder {TABLES}"
    )


def _read_rows(folder: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A table's rows, from the folder of tables; none if it has no such folder."""
    schema = SCHEMAS[name]
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return _read_parts(folder / name, schema, columns)
        except FileNotFoundError:  # the part was merged since the folder was listed
            continue
    return _read_parts(folder / name, schema, columns)


def count_rows(folder: Path, until_round: int) -> dict[str, int]:
    """Count every table's rows up to a round, as they are on disk.

    Args:
        folder: the run's folder of tables.
        until_round: the last round that counts.

    Returns: table -> rows.
    """
    counts = {}
    for name in SCHEMAS:
        by_round = _rows_by_round(folder, name)
        counts[name] = sum(rows for round_index, rows in by_round.items() if round_index <= until_round)
    return counts


class RowsByRound:
    """A table's rows, round by round: a whole table of many clients as Python objects can fill the memory.

    Args:
        table: sorted by round, as `read_table` gives it.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table, self._rounds = table, table["round"].to_numpy()

    def of(self, round_index: int) -> list[dict[str, Any]]:
        """The rows of a round; none if there are none."""
        first, end = np.searchsorted(self._rounds, [round_index, round_index + 1])
        rows: list[dict[str, Any]] = self._table.slice(first, end - first).to_pylist()
        return rows


def _rows_by_round(folder: Path, name: str) -> dict[int, int]:
    counts = _read_rows(folder, name, ["round"])["round"].value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def _read_parts(folder: Path, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    parts = [_read_part(part.path, schema, columns) for part in _covering(folder)]
    if not parts:
        return schema.empty_table() if columns is None else schema.empty_table().select(columns)
    # Parts of an earlier version may lack a column that later ones have.
    return pa.concat_tables(parts, promote_options="default")


def _read_part(path: Path, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    """A part's rows; of an earlier version's part columns may be missing, which is for the reader to say."""
    table = read_parquet(path, columns)
    for field in table.schema:
        if field.name not in schema.names or field.type != schema.field(field.name).type:
            raise DataError(f"{path} is damaged: it has a column {field.name} of {field.type}")
    return table


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


def _cut(part: _Part, after_round: int) -> None:
    """Keep a part's rows up to a round. The shorter part is written before the longer one is removed."""
    if part.first <= after_round:
        table = read_parquet(part.path)
        shorter = table.filter(pa.compute.less_equal(table["round"], after_round))
        # It lies within the longer part: readers leave it out until that one is gone.
        _write_part(part.path.parent, part.first, after_round, shorter)
    part.path.unlink()


def _tidy(folder: Path) -> None:
    """Remove parts that lie within others, and unfinished files."""
    parts = _parts(folder)
    for part in parts:
        if any(part.within(other) for other in parts):
            part.path.unlink()
    remove_unfinished(folder)


def _write_part(folder: Path, first: int, last: int, table: pa.Table) -> None:
    with written_aside(folder / f"part-{first:08d}-{last:08d}.parquet") as aside:
        pq.write_table(table, aside)


def _parts(folder: Path) -> list[_Part]:
    """All parts by first round; of those with the same first round the longest comes first."""
    matches = ((path, _NAME.fullmatch(path.name)) for path in folder.glob("part-*.parquet"))
    parts = [_Part(path, int(match[1]), int(match[2])) for path, match in matches if match]
    return sorted(parts, key=lambda part: (part.first, -part.last))


def _covering(folder: Path) -> list[_Part]:
    """The parts that lie within no other one: together they hold every row once."""
    covering: list[_Part] = []
    for part in _parts(folder):  # sorted: a part that covers others comes before them
        if not covering or part.last > covering[-1].last:
            covering.append(part)
    return covering
