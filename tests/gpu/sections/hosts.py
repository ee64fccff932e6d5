"""The workloads `round` and `tiny` on hosts of Ray that share the device, against as many plain processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import bare_loop
from size import Row, Size, needs_ray, rows_of
from workloads import ROUND, SMALL, TINY, Workload, against_bare


def rows(size: Size) -> Iterator[Row]:
    """A row for each workload and number of hosts. Raises: LeftOutError without Ray."""
    needs_ray()
    from rayfed_kd.cluster.ray_backend.session import RaySession
    from rayfed_kd.experiment.preparation import prepare

    works = (replace(TINY, **SMALL),) if size.toy else (ROUND, TINY)
    counts = [count for count in size.of((1, 2, 4, 8), (1, 2)) if count <= (os.cpu_count() or 1)]
    budget_s = size.seconds / (len(works) * len(counts)) / 4
    cases = {
        f"{work.name}, {count} host{'s' * (count > 1)}": partial(_row, work, count, size, budget_s)
        for work in works
        for count in counts
    }
    with RaySession(prepare(works[0].recipe()).recipe, None) as session:  # one Ray for all
        session.ready()
        yield from rows_of("workload", cases)


def _row(work: Workload, count: int, size: Size, budget_s: float) -> Row:
    from round import OnRay

    share = 0.0 if size.device == "cpu" else 1 / count
    ours = OnRay(work, count, share)
    bare = bare_loop.Bare(work, ours.prepared.setting, ours.state.weights, count, size.device)
    try:
        return against_bare("ray", ours, bare, work, budget_s)
    finally:
        bare.close()
        ours.close()
