"""The parts of a table: Parquet files of a range of rounds, named after it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rayfed_kd.files import remove_unfinished

_NAME = re.compile(r"part-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class Part:
    """A part, and the first and last round that it covers."""

    path: Path
    first: int
    last: int

    def covers(self, round_index: int) -> bool:
        """Whether its range holds a round, of which it may have no row."""
        return self.first <= round_index <= self.last

    def within(self, other: Part) -> bool:
        """Whether another part has all its rounds."""
        return other != self and other.first <= self.first and self.last <= other.last


def parts_in(folder: Path) -> list[Part]:
    """All parts by first round; of those with the same first round the longest comes first."""
    matches = ((path, _NAME.fullmatch(path.name)) for path in folder.glob("part-*.parquet"))
    parts = [Part(path, int(match[1]), int(match[2])) for path, match in matches if match]
    return sorted(parts, key=lambda part: (part.first, -part.last))


def covering(folder: Path) -> list[Part]:
    """The parts that lie within no other one: together they hold every row once."""
    found: list[Part] = []
    for part in parts_in(folder):  # sorted: a part that covers others comes before them
        if not found or part.last > found[-1].last:
            found.append(part)
    return found


def tidy(folder: Path) -> None:
    """Remove parts that lie within others, and unfinished files."""
    parts = parts_in(folder)
    for part in parts:
        if any(part.within(other) for other in parts):
            part.path.unlink()
    remove_unfinished(folder)
