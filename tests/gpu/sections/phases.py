"""Seconds of a round by phase, on the local engine: the five methods."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from phases import PHASES, WORK, phases
from size import Row, Size, rows_of

TOY = {
    "data": {"name": "synthetic", "samples": 60, "shape": [1, 28, 28], "test_samples": 10},
    "partition": {"name": "iid", "clients": 2, "test": "official"},
    "sampling": {"count": 2},
    "rounds": 3,
}


def rows(size: Size) -> Iterator[Row]:
    """A row for each of the benchmark's recipes; at toy size for FedAvg's with LeNet-5."""
    work = {"FedAvg, LeNet-5": WORK["FedAvg, LeNet-5"] | TOY} if size.toy else WORK
    yield from rows_of("method", {name: partial(_seconds, recipe, size) for name, recipe in work.items()})


def _seconds(recipe: dict[str, Any], size: Size) -> Row:
    seconds = phases(recipe, local=True, overrides=size.placement)
    by_phase = {phase: seconds[phase] for phase in PHASES}
    return {"round_s": seconds["round"], **by_phase, "host_busy_percent": 100 * seconds["busy"]}
