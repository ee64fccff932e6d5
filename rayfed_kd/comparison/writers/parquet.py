"""A comparison as comparison.parquet, for further analysis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rayfed_kd.comparison.comparison import STATISTICS, Comparison
from rayfed_kd.comparison.differences import Difference, Row
from rayfed_kd.results.schemas import EPSILONS

CHANGED = "changed"  # of the schema's metadata
_REAL, _TEXTS = pa.float64(), dict.fromkeys(("run", "model", "metric", "statistic"), pa.string())
# Of one seed all deviations are null, and so would be the column's type.
_NUMBERS = {"mean": _REAL, "deviation": _REAL, "seeds": pa.list_(_REAL), "low": _REAL, "high": _REAL}


def comparison_table(comparison: Comparison) -> pa.Table:
    """A row per run, model, metric and statistic.

    Args:
        comparison: what is written.

    Returns: columns run, model, metric, statistic, mean, deviation, seeds, low, high. `seeds` holds every
        seed's value. Mean and deviation are null where there is no value, and the deviation for one seed. A
        cost to the target is of the seeds that reached it. A row with statistic `difference to LABEL`, or
        `claim: SAYS` of the claim's higher row, has the ends of its 95 % interval in `low` and `high`, which
        are null elsewhere; a claim about bytes is in MiB. Statistic `in all` has what a whole run cost:
        bytes, seconds, and `epsilon`, `local_epsilon` and `delta` of runs with `privacy`; an epsilon may be
        infinite. The schema's metadata has as `changed` what the command line changed of the study, or "",
        and as `found` what rows' searches found.
    """
    records: list[dict[str, Any]] = []
    for row in comparison.rows:
        for metric in comparison.metrics:
            for statistic in STATISTICS:
                values = comparison.values(row, metric, statistic)
                records.append(_record(row, metric, statistic, values))
        difference, baseline = comparison.difference(row), comparison.baseline(row)
        if difference is not None and baseline is not None:
            what = f"difference to {baseline[0]}"
            records.append(_difference_record(row, comparison.headline, what, difference))
        if comparison.study.target is not None:
            for name, costs in comparison.costs(row).items():
                records.append(_record(row, name, "to target", [cost for cost in costs if cost is not None]))
        for name, values in _totals(comparison, row[0]).items():
            records.append(_record(row, name, "in all", values))
    for judged in comparison.judged_claims():
        if judged.difference is not None:
            what = f"claim: {judged.claim.says}"
            records.append(_difference_record(judged.higher, judged.metric, what, judged.difference))
    return pa.Table.from_pylist(records, pa.schema(_TEXTS | _NUMBERS)).replace_schema_metadata(
        {CHANGED: ", ".join(comparison.study.changes), "found": "; ".join(comparison.study.found)}
    )


def _totals(comparison: Comparison, label: str) -> dict[str, list[float]]:
    """What a row's runs cost in all, by name, a value for each seed that has one."""
    runs = list(comparison.seed_totals(label).values())
    totals = dict[str, list[float]]()
    for before, sent in (("", [run.cost for run in runs]), ("raw_", [run.raw for run in runs])):
        for name in ("bytes_up", "bytes_down", "bytes"):
            totals[f"{before}{name}"] = [float(getattr(cost, name)) for cost in sent]
    totals["sim_s"] = [run.cost.sim_s for run in runs if run.cost.sim_s is not None]
    totals["wall_s"] = [run.cost.wall_s for run in runs]
    for name in (*EPSILONS, "delta"):
        totals[name] = [spent[name] for spent in comparison.privacy(label) if spent[name] is not None]
    return {name: values for name, values in totals.items() if values}


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _record(row: Row, metric: str, statistic: str, values: Sequence[float]) -> dict[str, Any]:
    return {
        "run": row[0],
        "model": row[1],
        "metric": metric,
        "statistic": statistic,
        "mean": statistics.fmean(values) if values else None,
        "deviation": _deviation(values),
        "seeds": [float(value) for value in values],
        "low": None,
        "high": None,
    }


def _difference_record(row: Row, metric: str, statistic: str, difference: Difference) -> dict[str, Any]:
    values = list(difference.by_seed.values())
    return _record(row, metric, statistic, values) | {"low": difference.low, "high": difference.high}
