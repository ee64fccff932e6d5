"""A run's tables: readable at any moment, also after a kill.

While a run goes on each table grows as one Arrow IPC stream, to which a round appends a batch of its rows. At
the run's end the stream becomes one Parquet file. Where both are there, the stream is the table: a kill came
between writing one and removing the other.

A kill leaves at most one batch that is not whole, at a stream's end, which readers leave out. To flush each
round to disk would slow short rounds. So `TableWriter.sync` does it for many rounds: a power cut may damage
the rows since then, which a resumed run drops unread.
"""

from rayfed_kd.results.tables.reading import RowsByRound, count_rows, last_round, read_table, read_tables
from rayfed_kd.results.tables.writing import TableWriter

__all__ = ["RowsByRound", "TableWriter", "count_rows", "last_round", "read_table", "read_tables"]
