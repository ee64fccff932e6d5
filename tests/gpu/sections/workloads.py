"""The workloads `round` and `tiny` in one process, alone and batched, against the bare loop beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import bare_loop
from size import Row, Size, rows_of
from workloads import ROUND, SMALL, TINY, InOneProcess, Workload, against_bare


def rows(size: Size) -> Iterator[Row]:
    """A row for each workload and way of training."""
    cases = []
    for work in (ROUND, TINY):
        if size.toy:
            cases += [replace(work, **SMALL), replace(work, **SMALL, vectorise=2)]
            continue
        # A group is made of one round's cohort, which must be as large.
        batched = [replace(work, cohort=max(work.cohort, many), vectorise=many) for many in (25, 100)]
        cases += [work, *batched]
    budget_s = size.seconds / (len(cases) + 2) / 2
    size.set_up()
    named = {f"{work.name}, {_way(work)}": partial(_row, work, size, budget_s) for work in cases}
    yield from rows_of("workload", named)


def _way(work: Workload) -> str:
    return "alone" if work.vectorise == "off" else f"batched by {work.vectorise}"


def _row(work: Workload, size: Size, budget_s: float) -> Row:
    ours = InOneProcess(work, size.device)
    bare = bare_loop.Bare(work, ours.prepared.setting, ours.state.weights, 0, size.device)
    return against_bare("ours", ours, bare, work, budget_s)
