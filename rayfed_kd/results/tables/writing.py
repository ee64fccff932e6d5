"""Writes a run's tables: a part for each round, or for several that follow one another fast."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from rayfed_kd.files import flush_to_disk, read_parquet, written_aside
from rayfed_kd.results.schemas import SCHEMAS
from rayfed_kd.results.tables.parts import Part, covering, parts_in, tidy
from rayfed_kd.results.tables.reading import rows_by_round
from rayfed_kd.results.tables.recent import RecentRows, Tables, read_recent
from rayfed_kd.results.tables.rows import arrow_rows

MERGE_AT = 64  # parts; a folder of thousands of small files is slow to read, above all over a network
MOST_GATHERED = 64  # rounds
MANY_ROWS = 1000  # of a round; Parquet takes them faster than JSON


class TableWriter:
    """Writes a run's tables below `folder`, one folder a table. One writer at a time.

    Args:
        folder: made if it is not there; unfinished files of a killed writer are removed.
        after_round: the last round whose rows stay, as a resumed run needs; None: all stay.
        gather_s: rounds that come sooner than so many seconds after the last parts are gathered: each is
            appended to the recent rows, which `read_table` reads, and parts are written of several.
    """

    def __init__(self, folder: Path, after_round: int | None = None, gather_s: float = 0.0) -> None:
        self._folder, self._gather_s, self._written_at = folder, gather_s, -math.inf
        self._recent = RecentRows(folder)
        self._unflushed: deque[Path] = deque()  # its ends may be used by two threads
        for name in SCHEMAS:
            (folder / name).mkdir(parents=True, exist_ok=True)
            tidy(folder / name)
        self._keep(math.inf if after_round is None else after_round)

    def _look(self) -> None:
        """Keep what is there: to list the folders for each round takes as long as to write its parts."""
        self._rows = {name: rows_by_round(self._folder, name) for name in SCHEMAS}
        self._parts = {name: covering(self._folder / name) for name in SCHEMAS}

    def row_counts(self, until_round: int) -> dict[str, int]:
        """Table -> how many rows it has of rounds up to this one."""
        counts = {}
        for name, in_parts in self._rows.items():
            recent = {index: len(tables.get(name, ())) for index, tables in self._recent.rounds.items()}
            by_round = in_parts | recent
            counts[name] = sum(count for index, count in by_round.items() if index <= until_round)
        return counts

    def write(self, round_index: int, tables: Tables) -> None:
        """Write a round's rows, so that `read_table` finds them. Those of the same round are replaced.

        Args:
            round_index: the round, from 1.
            tables: table -> rows with the columns of `SCHEMAS`; a column that a row lacks is null.

        Raises:
            RecipeError, KeyError, TypeError, ValueError: as `arrow_rows` does; of a round that is gathered
                when its part is written.
            ValueError: the round lies in a part of several rounds already: `truncate` comes first.
        """
        # Those on disk are left as they are for longer: their parts have to be brought to disk one by one.
        soon = self._recent.on_disk or time.monotonic() - self._written_at < self._gather_s
        if soon and sum(map(len, tables.values())) < MANY_ROWS:
            self._recent.append(round_index, tables)
            if len(self._recent.rounds) >= MOST_GATHERED:
                self.write_recent()
            return
        self._write_parts({**self._recent.rounds, round_index: tables}, flush=self._recent.on_disk)
        self._recent.forget()

    def write_recent(self) -> None:
        """Write the parts of the rounds that are gathered so far.

        Raises: as `write`.
        """
        if self._recent.rounds:
            self._write_parts(self._recent.rounds, flush=self._recent.on_disk)
            self._recent.forget()

    def flush(self) -> None:
        """Bring all rows so far to disk, the recent ones as they are: to make parts of them takes longer.

        Raises:
            OSError: the disk does not take them.
        """
        self._recent.sync()
        self.sync()

    def _write_parts(self, rounds: Mapping[int, Tables], *, flush: bool) -> None:
        """One part a table, of all its rows in these rounds.

        Args:
            rounds: the rows by round.
            flush: whether a checkpoint may count on these rows. Then each part is brought to disk before it
                has its name: of one that a power cut has torn nothing could be read.
        """
        for name in dict.fromkeys(name for tables in rounds.values() for name in tables):
            rows = {index: tables[name] for index, tables in rounds.items() if name in tables}
            arrow, filled = arrow_rows(name, rows), sorted(index for index in rows if rows[index])
            if filled:
                self._write_part_of(name, filled, arrow, flush=flush)
                self._rows[name] |= {index: len(rows[index]) for index in filled}
                self._merge_when_many(name)
        self._written_at = time.monotonic()

    def _write_part_of(self, name: str, rounds: Sequence[int], table: pa.Table, *, flush: bool) -> None:
        """The part of some rounds of a table, in order; one of the same single round is replaced."""
        for round_index in rounds:
            self._refuse_covered(name, round_index)
        path = _write_part(self._folder / name, rounds[0], rounds[-1], table, flush=flush)
        if not flush:
            self._unflushed.append(path)
        part = Part(path, rounds[0], rounds[-1])
        if part not in self._parts[name]:
            self._parts[name].append(part)

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
        self._keep(after_round)

    def _keep(self, after_round: float) -> None:
        """Drop later rounds, and write what stays of the recent rows into parts."""
        found = read_recent(self._folder)
        recent = {index: tables for index, tables in found.items() if index <= after_round}
        for name in SCHEMAS:
            # First, because a covered part would count again once the part that covers it is gone.
            tidy(self._folder / name)
            for part in parts_in(self._folder / name):
                if part.last > after_round:
                    _cut(part, int(after_round))
        self._look()
        if recent:
            self._write_parts({k: self._without_parts(k, recent[k]) for k in recent}, flush=True)
        self._recent.close()  # not before their parts are there
        if found:  # of rounds that are dropped, too, rows were counted
            self._look()

    def _without_parts(self, round_index: int, tables: Tables) -> Tables:
        """The tables that have no part of this round: a kill between parts leaves the others' recent rows."""
        return {
            name: rows
            for name, rows in tables.items()
            if not any(part.covers(round_index) for part in self._parts[name])
        }

    def close(self) -> None:
        """Merge all parts of each table into one, and bring them to disk."""
        self.write_recent()
        self._recent.close()
        for name in SCHEMAS:
            self._merge(name, self._parts[name])
        self.sync()  # where a table has one part, of one round

    def _refuse_covered(self, name: str, round_index: int) -> None:
        for part in self._parts[name]:
            if part.covers(round_index) and part.first != part.last:
                raise ValueError(
                    f"table {name}: round {round_index} is in {part.path.name} already; "
                    f"truncate({round_index - 1}) comes before writing it again"
                )

    def _merge_when_many(self, name: str) -> None:
        # Merged parts are left alone until `close`: a long run would rewrite all its rows each time. Only
        # those behind the last of them, so that what is merged covers no part that is not.
        small = list(takewhile(lambda part: part.last - part.first < MERGE_AT - 1, self._parts[name][::-1]))
        if len(small) >= MERGE_AT:
            self._merge(name, small[::-1])

    def _merge(self, name: str, parts: Sequence[Part]) -> None:
        if len(parts) > 1:
            # Written before the small parts go: a kill in between leaves rows twice on disk, never none.
            whole = [read_parquet(part.path) for part in parts]
            merged = pa.concat_tables(whole, promote_options="default")  # see `_read_parts`
            _write_part(self._folder / name, parts[0].first, parts[-1].last, merged)
        tidy(self._folder / name)
        self._parts[name] = covering(self._folder / name)


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
