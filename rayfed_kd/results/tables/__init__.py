"""A run's tables as Parquet parts: readable at any moment, also after a kill.

A part holds a range of rounds; it is written aside and renamed. Rounds that follow one another fast are
gathered: their rows lie in one file until a part is written of all of them (`recent`). Sixty-four small
parts are merged into one part that covers them. Until the small ones are gone, readers leave out a part that
lies within another, so a kill in between doubles no row.

To flush the parts of each round to disk would slow short rounds. So `TableWriter.sync` does it for many
rounds: a power cut may damage the parts since the last one, which a resumed run drops unread.
"""

from rayfed_kd.results.tables.reading import RowsByRound, count_rows, last_round, read_table
from rayfed_kd.results.tables.writing import TableWriter

__all__ = ["RowsByRound", "TableWriter", "count_rows", "last_round", "read_table"]
