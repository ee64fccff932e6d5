"""Reads a run's tables, also while it writes them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rayfed_kd.errors import DataError
from rayfed_kd.files.whole import read_parquet
from rayfed_kd.results.schemas import CONFIG, SCHEMAS, TABLES, check_table_name
from rayfed_kd.results.tables.streams import STREAM, stream_batches

PARQUET = "rows.parquet"
FORMER = {"losses": "logged"}  # what columns were called in runs of before
READ_ATTEMPTS = 3  # a run begins or ends once while somebody reads


def read_table(folder: str | Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table's rows so far; it may be called while a run writes.

    Args:
        folder: the run's folder, as runs/NAME, or its folder of tables, as runs/NAME/tables.
        name: rounds, metrics, clients, scores, messages, privacy or hosts.
        columns: those that are wanted; None: all.

    Returns: rows by round, and within a round by client, model and so on; no row if the run has none yet.

    Raises:
        RecipeError: there is no such table.
        DataError: the folder is no run's, or the table is damaged.
    """
    check_table_name(name)
    return table_rows(_folder_of_tables(Path(folder).expanduser(), name) / name, name, columns)


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


def table_rows(
    folder: Path, name: str, columns: Sequence[str] | None = None, until_round: int | None = None
) -> pa.Table:
    """A table's rows, of the stream if there is one, else of the Parquet file; none if there is neither.

    Args:
        folder: the table's own.
        name: the table.
        columns: those that are wanted; None: all.
        until_round: rows of later rounds are left out; damage to them in a stream is not told.

    Raises: DataError if the rows are damaged, or of a version that wrote other files.
    """
    table = _stream_or_parquet(folder, SCHEMAS[name], until_round)
    if until_round is not None:
        table = table.filter(pa.compute.less_equal(table["round"], until_round))
    return table if columns is None else table.select(columns)


def _stream_or_parquet(folder: Path, schema: pa.Schema, until_round: int | None) -> pa.Table:
    for _ in range(READ_ATTEMPTS):
        with suppress(FileNotFoundError):
            batches = list(stream_batches(folder / STREAM, until_round))
            table = pa.Table.from_batches(batches, None if batches else schema)
            return _known(table, schema, folder / STREAM)
        # A file that is gone, or a stream that is there now: the run has begun or ended meanwhile.
        with suppress(FileNotFoundError):
            table = _parquet_rows(folder, schema)
            if table.num_rows or not (folder / STREAM).exists():
                return table
    raise DataError(f"{folder}: its files came and went during {READ_ATTEMPTS} looks; expected one run")


def _parquet_rows(folder: Path, schema: pa.Schema) -> pa.Table:
    paths = list(folder.glob("[!.]*.parquet"))  # not unfinished ones
    if len(paths) > 1:
        raise DataError(
            f"{folder} has {len(paths)} files, as version 0.1 left those of a run that did not end; expected "
            "one. pyarrow.parquet.read_table reads them"
        )
    if not paths:
        return schema.empty_table()
    return _known(read_parquet(paths[0]), schema, paths[0])


def _known(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    table = table.rename_columns([FORMER.get(name, name) for name in table.column_names])
    for field in table.schema:
        if field.name not in schema.names or field.type != schema.field(field.name).type:
            raise DataError(f"{path} is damaged: it has a column {field.name} of {field.type}")
    return table  # of an earlier version's table columns may be missing, which is for the reader to say


def count_rows(folder: Path, until_round: int) -> dict[str, int]:
    """Count every table's rows up to a round, as they are on disk.

    Args:
        folder: the run's folder of tables.
        until_round: the last round that counts.

    Returns: table -> rows.
    """
    return {name: table_rows(folder / name, name, ["round"], until_round).num_rows for name in SCHEMAS}


def last_round(folder: Path) -> int:
    """The last round that is recorded and can be read; 0: none is.

    Args:
        folder: the run's folder of tables.
    """
    rounds = table_rows(folder / "rounds", "rounds", ["round"], until_round=sys.maxsize)["round"]
    return rounds[-1].as_py() if len(rounds) else 0


def read_tables(folder: Path) -> dict[str, pa.Table]:
    """All tables of a run, by name; see `read_table`."""
    return {name: read_table(folder, name) for name in SCHEMAS}


class RowsByRound:
    """A run's rows, round by round: a whole table of many clients as Python objects can fill the memory.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self._tables = {name: (rows, rows["round"].to_numpy()) for name, rows in read_tables(folder).items()}

    def of(self, round_index: int) -> dict[str, list[dict[str, Any]]]:
        """Table -> its rows of a round; none if there are none."""
        rows = {}
        for name, (table, rounds) in self._tables.items():
            first, end = np.searchsorted(rounds, [round_index, round_index + 1])
            rows[name] = table.slice(first, end - first).to_pylist()
        return rows
