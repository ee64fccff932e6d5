"""A comparison as comparison.parquet, for further analysis."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rayfed_kd.comparison.comparison import STATISTICS, Comparison, Row


def comparison_table(comparison: Comparison) -> pa.Table:
    """A row per run, model, metric and statistic.

    Args:
        comparison: what is written.

    Returns: columns run, model, metric, statistic, mean, deviation, seeds, low, high. `seeds` holds every
        seed's value. Mean and deviation are null where there is no value, and the deviation for one seed. A
        cost counts only if every seed reached the target. A row with statistic `difference to LABEL`, or
        `claim: SAYS` of the claim's higher row, has the ends of its 95 % interval in `low` and `high`, which
        are null elsewhere; a claim about bytes is in MiB.
    """
    records: list[dict[str, Any]] = []
    for row in comparison.rows():
        for metric in comparison.metrics():
            for statistic in STATISTICS:
                values = comparison.values(row, metric, statistic)
                records.append(_record(row, metric, statistic, values))
        difference, baseline = comparison.difference(row), comparison.baseline(row)
        if difference is not None and baseline is not None:
            values = list(difference.by_seed.values())
            record = _record(row, comparison.headline(), f"difference to {baseline[0]}", values)
            records.append(record | {"low": difference.low, "high": difference.high})
        if comparison.has_relative_changes():
            changes = comparison.relative_changes(row)
            records.append(_record(row, "accuracy", "relative change", changes))
        if comparison.study.target is not None:
            for name, costs in comparison.costs(row).items():
                reached = [cost for cost in costs if cost is not None]
                complete = reached if len(reached) == len(costs) else []
                records.append(_record(row, name, "to target", complete))
    for judged in comparison.judged_claims():
        if judged.difference is not None:
            values = list(judged.difference.by_seed.values())
            record = _record(judged.higher, judged.metric, f"claim: {judged.claim.says}", values)
            records.append(record | {"low": judged.difference.low, "high": judged.difference.high})
    return pa.Table.from_pylist(records)


def _record(row: Row, metric: str, statistic: str, values: Sequence[float]) -> dict[str, Any]:
    return {
        "run": row[0],
        "model": row[1],
        "metric": metric,
        "statistic": statistic,
        "mean": statistics.fmean(values) if values else None,
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": [float(value) for value in values],
        "low": None,
        "high": None,
    }
