"""Reads a run's tables, also while it writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayfed_kd.errors import DataError
from rayfed_kd.files import read_parquet
from rayfed_kd.results.schemas import CONFIG, SCHEMAS, TABLES, check_table_name
from rayfed_kd.results.tables.parts import covering
from rayfed_kd.results.tables.recent import read_recent
from rayfed_kd.results.tables.rows import arrow_rows

READ_ATTEMPTS = 5  # a merge during each of them is not to be expected: merges are 64 rounds apart


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


def _read_rows(
    folder: Path, name: str, columns: Sequence[str] | None = None, until_round: int | None = None
) -> pa.Table:
    """A table's rows, from the folder of tables; none if it has no such folder."""
    for _ in range(READ_ATTEMPTS - 1):
        try:
            return _read_parts_and_recent(folder, name, columns, until_round)
        except FileNotFoundError:  # the part was merged since the folder was listed
            continue
    return _read_parts_and_recent(folder, name, columns, until_round)


def count_rows(folder: Path, until_round: int) -> dict[str, int]:
    """Count every table's rows up to a round, as they are on disk.

    Args:
        folder: the run's folder of tables.
        until_round: the last round that counts.

    Returns: table -> rows.
    """
    counts = {}
    for name in SCHEMAS:
        by_round = rows_by_round(folder, name, until_round)
        counts[name] = sum(rows for round_index, rows in by_round.items() if round_index <= until_round)
    return counts


def last_round(folder: Path) -> int:
    """The last round that is recorded, by the names of files, which may be damaged; 0: none is.

    Args:
        folder: the run's folder of tables.
    """
    recent = [index for index, tables in read_recent(folder).items() if tables.get("rounds")]
    return max([0, *recent, *(part.last for part in covering(folder / "rounds"))])


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


def rows_by_round(folder: Path, name: str, until_round: int | None = None) -> dict[int, int]:
    """Round -> its rows. Parts that begin after `until_round` are not read: they may be damaged."""
    counts = _read_rows(folder, name, ["round"], until_round)["round"].value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def _read_parts_and_recent(
    folder: Path, name: str, columns: Sequence[str] | None, until_round: int | None = None
) -> pa.Table:
    schema = SCHEMAS[name]
    # First: rows that become a part meanwhile are then found twice, and never not at all.
    recent = read_recent(folder)
    parts = covering(folder / name)
    wanted = (part for part in parts if until_round is None or part.first <= until_round)
    found = [_read_part(part.path, schema, columns) for part in wanted]
    for round_index, tables in sorted(recent.items()):
        rows = tables.get(name)
        if rows and not any(part.covers(round_index) for part in parts):
            table = arrow_rows(name, {round_index: rows})
            found.append(table if columns is None else table.select(columns))
    if not found:
        return schema.empty_table() if columns is None else schema.empty_table().select(columns)
    # Parts of an earlier version may lack a column that later ones have.
    return pa.concat_tables(found, promote_options="default")


def _read_part(path: Path, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Table:
    """A part's rows; of an earlier version's part columns may be missing, which is for the reader to say."""
    table = read_parquet(path, columns)
    for field in table.schema:
        if field.name not in schema.names or field.type != schema.field(field.name).type:
            raise DataError(f"{path} is damaged: it has a column {field.name} of {field.type}")
    return table
