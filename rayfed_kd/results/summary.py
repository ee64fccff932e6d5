"""A run in one small file: summary.json, made of the run's tables when the run ends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

METRICS = ("amp", "fm", "wlp", "ua", "server_accuracy")
SMALLER_IS_BETTER = ("fm",)
LAST = 10  # evaluations that the mean of the last is over, as in the papers' tables


def summarise(tables: Mapping[str, pa.Table], status: str) -> dict[str, Any]:
    """Summarise a run: rounds, seconds, bytes by kind, and every model's metrics.

    A value that is no finite number counts as none: JSON has no word for it, and no value would be better.

    Args:
        tables: rounds, metrics and messages, as `SCHEMAS` has them.
        status: finished, interrupted or failed.

    Returns: what summary.json holds: status, rounds, wall_s, sim_s (None without a clock), bytes, and models
        with `last`, `best`, `best_round` and `last10` (the mean of the last ten evaluations) by metric.
    """
    rounds = tables["rounds"].to_pylist()
    last = rounds[-1] if rounds else {}
    return {
        "status": status,
        "rounds": last.get("round", 0),
        "wall_s": last.get("wall_s", 0.0),
        "sim_s": last.get("sim_s"),
        "bytes": {
            "up": sum(row["bytes_up"] for row in rounds),
            "down": sum(row["bytes_down"] for row in rounds),
            "by_kind": _by_kind(tables["messages"]),
        },
        "models": _models(tables["metrics"].to_pylist()),
    }


def _by_kind(messages: pa.Table) -> dict[str, dict[str, int]]:
    grouped = messages.group_by(["kind", "direction"]).aggregate([("bytes", "sum")]).to_pylist()
    kinds: dict[str, dict[str, int]] = {}
    for row in sorted(grouped, key=lambda row: (row["kind"], row["direction"])):
        kinds.setdefault(row["kind"], {"up": 0, "down": 0})[row["direction"]] = row["bytes_sum"]
    return kinds


def _models(rows: list[dict[str, Any]]) -> dict[str, Any]:
    models: dict[str, Any] = {}
    evaluations: dict[str, list[dict[str, float | None]]] = {}
    for row in rows:
        model = models.setdefault(
            row["model"], {"last": {}, "best": dict.fromkeys(METRICS), "best_round": {}}
        )
        model["last"] = {metric: _finite(row[metric]) for metric in METRICS}
        for metric, value in model["last"].items():
            if _better(metric, value, model["best"][metric]):
                model["best"][metric] = value
                model["best_round"][metric] = row["round"]
        evaluations.setdefault(row["model"], []).append(model["last"])
    for name, model in models.items():
        model[f"last{LAST}"] = {metric: _mean(evaluations[name][-LAST:], metric) for metric in METRICS}
    return models


def _mean(evaluations: Sequence[Mapping[str, float | None]], metric: str) -> float | None:
    """The metric's mean over those evaluations that have a value (UA as FedD2S reports it)."""
    values = [value for evaluation in evaluations if (value := evaluation[metric]) is not None]
    return statistics.fmean(values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _better(metric: str, value: float | None, best: float | None) -> bool:
    if value is None or best is None:  # any value is better than none
        return value is not None
    return value < best if metric in SMALLER_IS_BETTER else value > best
