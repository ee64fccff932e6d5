"""What a tracker is: a class that is told of a run, from its start to its end.

Its options are the keyword-only parameters of `__init__`. It lives in the server's process, which on a
cluster may be another machine than the command's, and is called from one thread at a time, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told before the first round.

    Attributes:
        folder: the run's own.
        config: the resolved recipe, nested, as JSON has it.
        id: 16 hexadecimal digits, the same when the run is resumed, and no other run's.
        name: the run's, as its folder is called.
        group: the comparison or search that the run belongs to, or what `results.group` says; None: none.
    """

    folder: Path
    config: Mapping[str, Any]
    id: str
    name: str
    group: str | None


@dataclass(frozen=True)
class TrackedRound:
    """What a tracker is told of a round. Round 0 has what is there before the first: the partition's picture.

    Attributes:
        round: from 1.
        scalars: name -> value, perhaps NaN, as amp/oca, logged/ce, bytes/up, time/wall_s; time/sim_s where a
            clock runs.
        histograms: name -> values, as client_accuracy/oca -> one for each client.
        images: name -> PNG file in the run's folder.
        tables: name -> Parquet file in the run's folder, the numbers of the picture of that name.
    """

    round: int
    scalars: Mapping[str, float]
    histograms: Mapping[str, Sequence[float]]
    images: Mapping[str, Path]
    tables: Mapping[str, Path]


class Tracker(ABC):
    """Is told of one run."""

    @abstractmethod
    def start(self, run: TrackedRun) -> int | None:
        """Begin, or go on with the run of `run.id`. An error here ends the run before its first round.

        Returns: the last round that the tracker holds: it is told of all later ones, in a resumed run from
            tables and pictures. None: it holds nothing, and is told of all.
        """

    @abstractmethod
    def round(self, told: TrackedRound) -> None:
        """Take a round. After an error it is told of the same round again when the run ends."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Let go of the run, which ends or is interrupted: this process tells nothing more.

        Args:
            summary: what summary.json will have; its `status` is finished, "finished, but diverged",
                interrupted or failed. The file comes last: a run that is killed before is gone on with.
            files: the recipe, the tables, and the pictures of all rounds, in the run's folder.
        """
