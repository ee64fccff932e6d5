"""Rounds of local training in fp32, tf32 and bf16 with fp32 weights: time, and how far the model moves."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

import torch
from size import Row, Size, rows_of
from torch import Tensor
from workloads import ROUND, TINY, InOneProcess, Workload, in_turns

SMALL = {"clients": 4, "samples": 20, "cohort": 2, "rounds": 2}


def rows(size: Size) -> Iterator[Row]:
    """A row for each workload and precision."""
    size.set_up()
    precisions = ("fp32", "bf16") if size.device == "cpu" else ("fp32", "tf32", "bf16")
    works = size.of(
        {"cnn2": ROUND, "bottleneck_resnet": replace(ROUND, model="bottleneck_resnet"), "mlp": TINY},
        {"lenet5": replace(ROUND, model="lenet5", **SMALL)},
    )
    for model, work in works.items():
        exact: list[Tensor] = []
        cases = {
            f"{model}, {name}": _Case(replace(work, precision=name, rounds=size.of(6, 2)), size, exact)
            for name in precisions
        }
        yield from rows_of("model", cases)


class _Case:
    """One precision's rounds; the first of a workload, fp32, is what the others are held against."""

    def __init__(self, work: Workload, size: Size, exact: list[Tensor]) -> None:
        self._work, self._size, self._exact = work, size, exact

    def __call__(self) -> Row:
        work, size = self._work, self._size
        if size.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        side = InOneProcess(work, size.device)
        start = side.state.weights.clone()
        seconds = in_turns({"ours": side}, work.rounds, size.seconds / 10)["ours"][1:]
        moved = side.state.weights - start
        self._exact.append(moved)
        peak = torch.cuda.max_memory_allocated() / 2**20 if size.device != "cpu" else None
        return {
            "ms_a_client": 1000 * statistics.median(seconds) / work.cohort,
            "rounds": 1 + len(seconds),
            "relative_distance_of_the_way": ((moved - self._exact[0]).norm() / self._exact[0].norm()).item(),
            "most_allocated_mib": peak,
        }
