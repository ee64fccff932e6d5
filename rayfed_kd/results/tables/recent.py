"""The rows of a run's last rounds, one line of JSON for each round, until they become parts.

To write a Parquet file for each table takes longer than a tiny round. So rounds that follow one another
within a fraction of a second are gathered: a line is appended, which outlives a kill, and parts are written
of many.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_kd.files import flush_to_disk

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

FILE = "recent.jsonl"  # in the folder of tables


class RecentRows:
    """Appends the rows of rounds, and forgets them once they are in parts.

    Args:
        folder: the folder of tables.
    Attributes:
        on_disk: whether somebody may count on these rows after a power cut: `sync` has brought some to disk.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._rounds: dict[int, Tables] = {}
        self._descriptor: int | None = None
        self._named = False  # whether the folder that holds the file's name was brought to disk
        self.on_disk = False

    @property
    def rounds(self) -> Mapping[int, Tables]:
        """Round -> its tables, those that were appended and not forgotten."""
        return self._rounds

    def append(self, round_index: int, tables: Tables) -> None:
        """Append a round's rows. The rows of the same round that came before no longer count.

        Raises:
            OSError: the disk does not take them.
        """
        line = json.dumps([round_index, tables], default=_plain).encode() + b"\n"
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
        while line:  # a disk that is almost full takes a part, then raises
            line = line[os.write(self._descriptor, line) :]
        self._rounds[round_index] = tables

    def sync(self) -> None:
        """Bring the rows so far to disk.

        Raises:
            OSError: the disk does not take them.
        """
        if self._descriptor is None or not self._rounds:
            return
        os.fsync(self._descriptor)
        if not self._named:
            flush_to_disk([self._path])
        self._named = self.on_disk = True

    def forget(self) -> None:
        """Empty the file, whose rows are in parts now."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
        self._rounds, self.on_disk = {}, False

    def close(self) -> None:
        """Remove the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._path.unlink(missing_ok=True)
        self._rounds, self._named, self.on_disk = {}, False, False


def read_recent(folder: Path) -> dict[int, Tables]:
    """The rows of the last rounds by round; perhaps they are in parts already.

    What follows a line that a kill or a power cut has left unfinished is not read.

    Args:
        folder: the folder of tables.
    """
    try:
        content = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return {}
    rounds = {}
    for line in content.split(b"\n")[:-1]:  # behind the last line's end there is nothing, or half a line
        try:
            round_index, tables = json.loads(line)
        except ValueError:
            break
        rounds[round_index] = tables
    return rounds


def _plain(value: Any) -> Any:
    """What JSON does not know: any mapping, and a number of numpy's."""
    return dict(value) if isinstance(value, Mapping) else value.item()
